"""Answers as bytes, for connections without a request that an application could answer."""

from collections.abc import Iterable

from openai_frontend.serving.error_reply import ErrorReply

Headers = Iterable[tuple[bytes, bytes]]

REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    413: "Content Too Large",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
}


def head(first_line: bytes, headers: Headers) -> bytes:
    """Of a request or a response, with the empty line behind it."""
    lines = [b"%s: %s" % header for header in headers]
    return b"\r\n".join([first_line, *lines, b"", b""])


def refusal(failure: ErrorReply, request_id: str, headers: Headers) -> bytes:
    """The last answer of a connection; `headers` are those of every answer."""
    own = [
        (b"content-type", b"application/json"),
        (b"x-request-id", request_id.encode()),
        (b"content-length", b"%d" % len(failure.body)),
        (b"connection", b"close"),
    ]
    status = b"HTTP/1.1 %d %s" % (failure.status, REASONS[failure.status].encode())
    return head(status, [*headers, *own]) + failure.body
