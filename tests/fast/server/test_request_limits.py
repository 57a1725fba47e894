"""Request limits, to the byte, the header and the chunk."""

from collections.abc import Callable

import pytest

from openai_frontend.server import limits
from openai_frontend.server.limits import (
    MAX_HEADERS,
    MAX_REQUEST_LINE_BYTES,
    ProtocolLimits,
    RequestLimits,
    RequestRejected,
)

LIMITS = ProtocolLimits(max_header_bytes=10_000)


@pytest.fixture(autouse=True)
def three_chunks(monkeypatch):
    monkeypatch.setattr(limits, "MAX_BODY_CHUNKS", 3)


Told = Callable[[RequestLimits], None]


def chunks(count: int) -> Told:
    def tell(incoming: RequestLimits) -> None:
        for _ in range(count):
            incoming.chunk()

    return tell


def headers(count: int) -> Told:
    def tell(incoming: RequestLimits) -> None:
        for _ in range(count):
            incoming.header(b"a", b"x")

    return tell


AT_THE_LIMIT: dict[str, tuple[Told, Told, int]] = {
    "url": (
        lambda incoming: incoming.url(b"x" * MAX_REQUEST_LINE_BYTES),
        lambda incoming: incoming.url(b"x"),
        414,
    ),
    "header": (
        lambda incoming: incoming.header(b"a", b"x" * 9_999),
        lambda incoming: incoming.header(b"a", b""),
        431,
    ),
    "headers": (
        headers(MAX_HEADERS),
        headers(1),
        431,
    ),
    "untold": (
        lambda incoming: incoming.count_buffered_head(10_000),
        lambda incoming: incoming.count_buffered_head(1),
        431,
    ),
    "chunks": (chunks(3), chunks(1), 413),
    "coding": (
        lambda incoming: incoming.header(b"transfer-encoding", b" Chunked"),
        lambda incoming: incoming.header(b"transfer-encoding", b"chunked"),
        400,
    ),
    "version": (
        lambda incoming: incoming.version("1.0"),
        lambda incoming: incoming.version("0.9"),
        400,
    ),
}


@pytest.mark.parametrize("what", AT_THE_LIMIT)
def test_limit_is_inclusive(what):
    """One more is rejected with the right error."""
    most, one_more, status = AT_THE_LIMIT[what]
    incoming = RequestLimits(LIMITS)

    most(incoming)
    with pytest.raises(RequestRejected):
        one_more(incoming)

    assert incoming.rejection is not None
    assert incoming.rejection.status == status


@pytest.mark.parametrize("what", AT_THE_LIMIT)
def test_next_request_starts_from_zero(what):
    most, _, _ = AT_THE_LIMIT[what]
    incoming = RequestLimits(LIMITS)

    most(incoming)
    incoming.begin()
    most(incoming)

    assert incoming.rejection is None


MESSAGES: dict[str, tuple[Told, str]] = {
    "url": (AT_THE_LIMIT["url"][1], "The URL of the request is longer than 8192 bytes."),
    "headers": (headers(MAX_HEADERS + 1), "The request has more than 100 headers."),
    "header": (
        lambda incoming: incoming.header(b"a", b"x" * 10_000),
        "The request headers are larger than 10000 bytes (--max-header-bytes).",
    ),
    "chunks": (chunks(4), "The request body has more than 3 chunks."),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_message_names_the_limit(what):
    tell, message = MESSAGES[what]
    incoming = RequestLimits(LIMITS)
    incoming.url(b"x" * (MAX_REQUEST_LINE_BYTES if what == "url" else 1))

    with pytest.raises(RequestRejected):
        tell(incoming)

    assert incoming.rejection is not None
    assert incoming.rejection.message == message
