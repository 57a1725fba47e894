"""Cache salts: their owners and the secret of the deployment."""

from hypothesis import example, given
from hypothesis import strategies as st

from openai_frontend.prefix_cache.salts import CacheSalts, secret_from
from schemas.sampling import MAX_CACHE_SALT_CHARACTERS, OWNER_CHARACTERS

SALTS = CacheSalts(b"a secret of the deployment")
DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
OWNERS = st.none() | DIGESTS
TEXTS = st.text(max_size=MAX_CACHE_SALT_CHARACTERS) | st.sampled_from(
    [f"{kind}/{'0' * 32}{rest}" for kind in "kc" for rest in ("", "/", "/x")]
)
REQUESTED = st.none() | TEXTS


@given(OWNERS, REQUESTED, OWNERS, REQUESTED)
@example(None, None, None, "")
@example("a" * 64, None, "a" * 64, "")
@example("a" * 64, None, None, "a" * 16 + "/")
def test_salts_are_equal_only_for_the_same_owner_and_the_same_requested_salt(
    owner, requested, other, other_requested
):
    """So a key that isolates shares nothing, and unequal salts of one key stay unequal."""
    same = (owner, requested) == (other, other_requested)

    assert (SALTS.salt(requested, owner) == SALTS.salt(other_requested, other)) == same


@given(DIGESTS, REQUESTED, OWNERS, REQUESTED)
def test_no_client_can_ask_for_the_salt_of_a_key_that_isolates(
    owner, requested, other, other_requested
):
    """Not even with that salt itself, of the key's own requests or of any other."""
    isolated = SALTS.salt(requested, owner)
    for asked in (isolated, f"{isolated}/{other_requested}"):
        assert SALTS.salt(asked, other) != isolated


@given(REQUESTED)
def test_salts_of_keys_without_isolation_are_those_of_requests_without_a_key(requested):
    """A request without a salt has none, so clients share the cache of their prompts."""
    assert (SALTS.salt(requested) is None) == (requested is None)


@given(DIGESTS, REQUESTED)
def test_salts_depend_on_the_secret(owner, requested):
    """Servers with the same secret agree; no client can compute a salt."""
    other, same = CacheSalts(), CacheSalts(b"a secret of the deployment")

    assert SALTS.salt(requested, owner) == same.salt(requested, owner)
    assert SALTS.salt(requested, owner) != other.salt(requested, owner)
    assert SALTS.salt("x") != other.salt("x")
    assert owner[:8] not in (SALTS.salt(None, owner) or "")


def test_the_longest_salt_fits_the_limit_of_engines():
    longest = SALTS.salt("x" * MAX_CACHE_SALT_CHARACTERS, "a" * 64) or ""

    assert len(longest) == MAX_CACHE_SALT_CHARACTERS + OWNER_CHARACTERS


def test_a_derived_secret_does_not_contain_the_other_one():
    assert secret_from("sk-transfer") not in (secret_from("sk-other"), b"sk-transfer")
