import hmac
import re
from datetime import UTC, datetime

import pytest

from openai_frontend.auth.api_keys import MAX_SECRET_BYTES, ApiKeys
from openai_frontend.errors import NotAuthenticated, RateLimited
from tests.auth.key_files import key


def test_a_key_is_found():
    """By what the client sends."""
    keys = ApiKeys([key("a"), key("b")])

    assert [keys.authenticate(each).key.name for each in (b"a", b"b")] == ["a", "b"]


EXPIRED = key("old", expires=datetime(2020, 1, 1, tzinfo=UTC))
UNKNOWN = [b"", b"c", b"A", b"a ", b"\xff\x00", "\u00e4".encode(), b"old", b"x" * 10**6]


@pytest.mark.parametrize("secret", [*UNKNOWN, key("a").digest.encode()], ids=len)
def test_other_keys(secret):
    """An unknown key, an expired one, an endless one and the digest itself are all the same."""
    keys = ApiKeys([key("a"), EXPIRED])

    with pytest.raises(NotAuthenticated, match=r"^Incorrect API key provided\.$"):
        keys.authenticate(secret)


def test_no_keys():
    """A file without keys opens to nobody."""
    with pytest.raises(NotAuthenticated):
        ApiKeys([]).authenticate(b"")


@pytest.mark.parametrize("secret", [b"a", b"b", b""])
def test_how_keys_are_compared(secret, monkeypatch):
    """Known or not, only digests are compared, in a time that tells not where they differ."""
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


def test_the_longest_key():
    """Only keys that could be in a file are hashed."""
    longest = "x" * MAX_SECRET_BYTES
    keys = ApiKeys([key("a", secret=longest), key("b", secret=longest + "x")])

    assert keys.authenticate(longest.encode()).key.name == "a"
    with pytest.raises(NotAuthenticated):
        keys.authenticate(longest.encode() + b"x")


def test_other_keys_from_now_on():
    """What is gone opens nothing; who stays has used what he has used, and has his new limits."""
    keys = ApiKeys([key("a", max_concurrent_requests=2), key("b")])
    keys.authenticate(b"a").rate_limiter.begin()

    keys.replace([key("a", secret="new", max_concurrent_requests=1), key("c")])

    with pytest.raises(RateLimited):
        keys.authenticate(b"new").rate_limiter.begin()
    assert len(keys) == 2
    for gone in (b"a", b"b"):
        with pytest.raises(NotAuthenticated):
            keys.authenticate(gone)
