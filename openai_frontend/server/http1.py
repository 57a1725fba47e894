"""HTTP/1 messages as bytes, and bodies for HTTP/1.0 clients: what uvicorn does not cover."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from openai_frontend.serving.error_reply import ErrorReply

if TYPE_CHECKING:  # a private module
    from uvicorn._types import ASGI3Application

Headers = Iterable[tuple[bytes, bytes]]

REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    413: "Content Too Large",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
}


def message_head(first_line: bytes, headers: Headers) -> bytes:
    """The head of a request or response, including the empty line."""
    lines = [b"%s: %s" % header for header in headers]
    return b"\r\n".join([first_line, *lines, b"", b""])


def closing_response(reply: ErrorReply, request_id: str, headers: Headers) -> bytes:
    """The last response of a connection. `headers` are those of every response."""
    own = [
        (b"content-type", b"application/json"),
        (b"x-request-id", request_id.encode()),
        (b"content-length", b"%d" % len(reply.body)),
        (b"connection", b"close"),
    ]
    status = b"HTTP/1.1 %d %s" % (reply.status, REASONS[reply.status].encode())
    return message_head(status, [*headers, *own]) + reply.body


def until_close(cycle: RequestResponseCycle, app: "ASGI3Application") -> "ASGI3Application":
    """Wraps the application for HTTP/1.0 clients, which do not know chunks: closing the connection
    ends a body of unknown length (RFC 9112, section 6.1). uvicorn sends chunks to every client.
    """
    if cycle.scope["http_version"] != "1.0":
        return app
    unframed = False

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unframed(message: Message) -> None:
            nonlocal unframed
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                unframed = b"content-length" not in names
                if unframed:
                    cycle.chunked_encoding, cycle.keep_alive = False, False
                    if b"connection" not in names:  # uvicorn adds it since 0.53
                        message["headers"] = [*message["headers"], (b"connection", b"close")]
            elif unframed:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unframed)  # type: ignore[arg-type]

    return wrapped  # type: ignore[return-value]
