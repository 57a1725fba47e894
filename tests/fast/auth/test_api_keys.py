import hmac
import re
from datetime import UTC, datetime

import pytest

from openai_frontend.auth.api_keys import MAX_SECRET_BYTES, ApiKeys
from openai_frontend.errors import NotAuthenticated, RateLimited
from tests.fast.auth.key_files import key


def test_known_key_authenticates():
    keys = ApiKeys([key("a"), key("b")])

    assert [keys.authenticate(each).key.name for each in (b"a", b"b")] == ["a", "b"]


EXPIRED = key("old", expires=datetime(2020, 1, 1, tzinfo=UTC))
UNKNOWN = [b"", b"c", b"A", b"a ", b"\xff\x00", "\u00e4".encode(), b"old", b"x" * 10**6]


@pytest.mark.parametrize("secret", [*UNKNOWN, key("a").digest.encode()], ids=len)
def test_invalid_keys_get_the_same_error(secret):
    """Unknown, expired and overlong keys, and the digest itself."""
    keys = ApiKeys([key("a"), EXPIRED])

    with pytest.raises(NotAuthenticated, match=r"^Incorrect API key provided\.$"):
        keys.authenticate(secret)


def test_without_keys_nothing_authenticates():
    with pytest.raises(NotAuthenticated):
        ApiKeys([]).authenticate(b"")


@pytest.mark.parametrize("secret", [b"a", b"b", b""])
def test_keys_are_compared_by_digest_in_constant_time(secret, monkeypatch):
    compared = []
    compare_digest = hmac.compare_digest

    def compare(known, given):
        compared.append((known, given))
        return compare_digest(known, given)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = ApiKeys([key("a")])
    found = None
    try:
        found = keys.authenticate(secret).key.name
    except NotAuthenticated:
        assert secret != b"a"

    [(known, given)] = compared
    assert known == (key("a").digest if found else "")
    assert re.fullmatch("[0-9a-f]{64}", given)


def test_overlong_keys_are_not_hashed():
    longest = "x" * MAX_SECRET_BYTES
    keys = ApiKeys([key("a", secret=longest), key("b", secret=longest + "x")])

    assert keys.authenticate(longest.encode()).key.name == "a"
    with pytest.raises(NotAuthenticated):
        keys.authenticate(longest.encode() + b"x")


async def test_replace_keeps_usage_by_name():
    """Removed keys stop working; remaining ones keep their usage and get their new limits."""
    keys = ApiKeys([key("a", max_concurrent_requests=2), key("b")])
    await keys.authenticate(b"a").rate_limiter.begin()

    keys.replace([key("a", secret="new", max_concurrent_requests=1), key("c")])

    with pytest.raises(RateLimited):
        await keys.authenticate(b"new").rate_limiter.begin()
    assert len(keys) == 2
    for gone in (b"a", b"b"):
        with pytest.raises(NotAuthenticated):
            keys.authenticate(gone)
