"""A request's head has a limit, and is not held beyond it (CVE-2025-48956: httptools has none).

tests/unit/server/test_http_protocol.py has every way to cut a head into pieces, and the slow ones.
"""

import pytest

LINE = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n"
MANY = 2**20
HEADS = {
    "one of 32 MB": [LINE + b"X: ", *[b"a" * MANY] * 32],
    "a name of 32 MB": [LINE, *[b"a" * MANY] * 32],
    "a million": [LINE, *[b"a: b\r\n" * 10_000] * 100],
    "a line of 32 MB": [b"GET /", *[b"a" * MANY] * 32],
    "a method of 32 MB": [b"G" * MANY] * 32,
    "a query of 32 MB": [b"GET /?", *[b"a=b&" * (MANY // 4)] * 32],
    "a version of 32 MB": [b"GET / HTTP/1.1", *[b"1" * MANY] * 32],
    "spaces": [LINE + b"X:", *[b" " * MANY] * 32],
    "folded lines": [LINE + b"X: a\r\n", *[b" a\r\n" * 10_000] * 100],
    "trailers": [b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
                 b"\r\n0\r\n", *[b"a: b\r\n" * 10_000] * 100],
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_head(guarded, name):
    """431, 414 or 400 and the end of the connection; what comes after the limit is dropped as it
    comes.
    """
    before = guarded.memory_bytes()

    received = guarded.flood(HEADS[name], ends=True)

    assert guarded.memory_bytes() - before < 8 * MANY
    assert received[9:12] in (b"400", b"401", b"414", b"431"), received[
        :200
    ]  # 401: before the trailers
    assert received.count(b"HTTP/1.1 ") <= 2


def test_many_at_once(guarded):
    """A hundred heads that never end take no more than their limit each."""
    assert guarded.grown_by(100, LINE + b"X: " + b"a" * 60_000) < 100 * 4 * 65_536
