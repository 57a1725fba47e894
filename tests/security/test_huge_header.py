"""A request head has a size limit, and the server stores nothing beyond it (CVE-2025-48956:
httptools has no limit).

tests/medium/server/test_http_protocol.py tests every way to split a head into pieces, and slow
heads.
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
def test_a_head_over_the_limit_gets_431_414_or_400(guarded, name):
    """The server then closes the connection and discards what arrives after the limit."""
    before = guarded.memory_bytes()

    received = guarded.flood(HEADS[name], ends=True)

    assert guarded.memory_bytes() - before < 8 * MANY
    assert received[9:12] in (b"400", b"401", b"414", b"431"), received[
        :200
    ]  # 401: before the trailers
    assert received.count(b"HTTP/1.1 ") <= 2


def test_unfinished_heads_use_memory_up_to_the_limit(guarded):
    """A hundred heads that never end use at most four times the limit of 64 KiB each."""
    assert guarded.grown_by(100, LINE + b"X: " + b"a" * 60_000) < 100 * 4 * 65_536
