import base64
import hmac
import time

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.auth import jwt_verifier
from openai_frontend.auth.api_keys import ApiKeys
from openai_frontend.auth.jwt_verifier import LEEWAY_S, InvalidJWKS, JWTVerifier
from openai_frontend.auth.rate_limit import KeyLimits
from openai_frontend.errors import NotAuthenticated, NotPermitted
from tests.examples import scaled
from tests.fast.auth.key_files import FakeClock, key
from tests.fast.auth.tokens import AUDIENCE, ISSUER, jwks, public, token


def tokens(clock=time.time, keys=None):
    made = JWTVerifier(issuer=ISSUER, audience=AUDIENCE, clock=clock)
    made.set_keys(keys or jwks())
    return made


def api_keys(**options):
    made = ApiKeys([key("a")])
    made.token_verifier = tokens(**options)
    return made


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_valid_token(algorithm):
    """Its subject is the principal, with its scopes; keys of the file still work."""
    both = api_keys()

    found = both.authenticate(token(algorithm=algorithm))
    assert (found.key.name, found.key.scopes) == ("jwt:alice", frozenset({"inference", "models"}))
    assert both.authenticate(b"a").key.name == "a"


def test_claim_with_models_and_limits():
    """It has the same fields as the keys file."""
    claim = {
        "models": ["org/*"],
        "max_concurrent_requests": 2,
        "tokens_per_minute": 7,
        "priority": 3,
    }

    found = api_keys().authenticate(token(openai_frontend=claim))
    assert found.key.models == ["org/*"]
    assert found.key.limits == KeyLimits(max_concurrent_requests=2, tokens_per_minute=7)
    assert found.key.priority == 3


SCOPES = [
    ({"scope": "openid admin"}, {"admin"}),
    ({"scope": None, "scp": ["models", "metrics", 7]}, {"models", "metrics"}),
    ({"scope": ["inference"]}, {"inference"}),
    ({"scope": None}, set()),
    ({"scope": ""}, set()),
    ({"scope": 7}, set()),
    ({"scope": "Admin, admin,"}, set()),
]


@pytest.mark.parametrize(("claims", "scopes"), SCOPES)
def test_scopes(claims, scopes):
    """Unknown scopes are ignored; without a known one nothing is allowed."""
    found = api_keys().authenticate(token(**claims))

    assert found.key.scopes == frozenset(scopes)
    with pytest.raises(NotPermitted):
        found.require("nothing")


NOW = int(time.time())
OTHER = ec.generate_private_key(ec.SECP256R1())


def coded(*parts):
    return [base64.urlsafe_b64encode(orjson.dumps(part)).rstrip(b"=") for part in parts]


def unsigned():
    head, body = coded({"alg": "none", "kid": "ES256"}, {"iss": ISSUER, "sub": "alice"})
    return b".".join([head, body, b""])


def signed_with_the_public_key():
    """As a library takes it that lets the token say how it is checked."""
    _, body, _ = token().split(b".")
    [head] = coded({"alg": "HS256", "kid": "ES256"})
    signature = hmac.digest(orjson.dumps(public("ES256")), head + b"." + body, "sha256")
    return b".".join([head, body, base64.urlsafe_b64encode(signature).rstrip(b"=")])


def with_another_body():
    head, _, signature = token().split(b".")
    return b".".join([head, token(sub="bob").split(b".")[1], signature])


REFUSED = {
    "another issuer": token(iss="https://evil.test"),
    "another audience": token(aud="somebody"),
    "no issuer": token(iss=None),
    "no audience": token(aud=None),
    "no subject": token(sub=None),
    "no end": token(exp=None),
    "over": token(exp=NOW - LEEWAY_S - 10),
    "not yet": token(nbf=NOW + 3600),
    "another key": token(key=OTHER),
    "an unknown key": token(kid="x"),
    "another's key": token(algorithm="RS256", kid="ES256"),
    "unsigned": unsigned(),
    "a shared secret": token(algorithm="HS256", key="x" * 32, kid="ES256"),
    "the public key as a shared secret": signed_with_the_public_key(),
    "another body": with_another_body(),
    "too much": token(openai_frontend={"max_concurrent_requests": 0}),
    "an unknown grant": token(openai_frontend={"stream": 1}),
    "no grants": token(openai_frontend=7),
    "too long": token(x="x" * 20_000),
    "nested": b"ey" + base64.urlsafe_b64encode(b"[" * 9000) + b".e30.e30",
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_token(name):
    with pytest.raises(NotAuthenticated):
        api_keys().authenticate(REFUSED[name])


def test_cached_token_expires():
    clock = FakeClock()
    clock.now_s = time.time()
    known = api_keys(clock=clock)
    ending = token(exp=int(clock.now_s) + 60)

    first = known.authenticate(ending)
    assert known.authenticate(ending) is first
    clock.now_s += 60 + LEEWAY_S
    over = token(exp=NOW - 60)
    with pytest.raises(NotAuthenticated, match="expired"):
        known.authenticate(over)
    assert known.authenticate(ending) is not first


def test_tokens_of_a_subject_share_a_rate_limiter():
    both = api_keys()
    first = both.authenticate(token(jti="1", openai_frontend={"max_concurrent_requests": 1}))
    second = both.authenticate(token(jti="2", openai_frontend={"max_concurrent_requests": 1}))
    other = both.authenticate(token(sub="bob"))

    assert first.rate_limiter is second.rate_limiter
    assert other.rate_limiter is not first.rate_limiter


def test_frequent_subject_stays_cached(monkeypatch):
    """A new token of the subject keeps its rate limiter, however many others arrive."""
    monkeypatch.setattr(jwt_verifier, "_CACHE_SIZE", 2)
    known, often = api_keys(), token()
    first = known.authenticate(often)
    for subject in ("b", "c", "d"):
        known.authenticate(token(sub=subject))
        assert known.authenticate(often) is first

    assert known.authenticate(token(exp=int(time.time()) + 7200)).rate_limiter is first.rate_limiter


@pytest.mark.parametrize("subject", ["x\ny", "\u00e4", "", "x" * 200])
def test_unprintable_subject_gets_a_printable_name(subject):
    name = api_keys().authenticate(token(sub=subject)).key.name

    assert name.startswith("jwt:")
    assert name.isascii()
    assert name.isprintable()
    assert len(name) == 20


def test_removed_signing_key():
    """Also tokens in the cache are rejected."""
    known, given = api_keys(), token()
    known.authenticate(given)
    known.token_verifier.set_keys(jwks("RS256"))

    with pytest.raises(NotAuthenticated):
        known.authenticate(given)


def test_unknown_key_id_triggers_the_callback():
    told = []
    known = api_keys(keys=jwks("RS256"))
    known.token_verifier.on_unknown_key = lambda: told.append(1)
    with pytest.raises(NotAuthenticated):
        known.authenticate(token())

    assert told == [1]


HMAC = {"kty": "oct", "k": "eHh4", "kid": "x", "alg": "HS256"}
BROKEN = [b"", b"[]", b"{}", b'{"keys":7}', b'{"keys":[7]}', b'{"keys":[]}', b'{"keys":[{}]}']


@pytest.mark.parametrize("content", [*BROKEN, orjson.dumps({"keys": [HMAC]})], ids=str)
def test_unusable_signing_keys(content):
    """Including shared secrets: who can verify with one can also sign."""
    with pytest.raises(InvalidJWKS):
        tokens().set_keys(content)


def test_other_keys_of_the_provider_are_ignored():
    """Encryption keys and unknown algorithms."""
    given = [public("RS256"), {**public("ES256"), "use": "enc"}, HMAC]

    assert tokens().set_keys(orjson.dumps({"keys": given})) == 1


HEADERS = st.dictionaries(st.text(), st.none() | st.text())


@pytest.mark.slow
@settings(max_examples=scaled(150), deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60), HEADERS)
def test_random_tokens_are_rejected(body, signature, header):
    [head] = coded({**header, "kid": "ES256", "alg": "ES256"})
    for parts in ([b"ey" + body, body, signature], [head, body, signature]):
        with pytest.raises(NotAuthenticated):
            tokens().verify(b".".join(parts), "")


def test_extra_requires_cryptography():
    """PyJWT verifies signatures with it."""
    assert jwt.algorithms.has_crypto
