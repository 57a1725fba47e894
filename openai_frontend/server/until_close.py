"""Ends bodies of unknown length by closing, for HTTP/1.0 clients, which know no chunks.

RFC 9112, section 6.1; uvicorn sends chunks to every client.
"""

from starlette.types import Message, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def until_close(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """The application, and where the client speaks HTTP/1.0, one whose answers have no chunks."""
    if cycle.scope["http_version"] != "1.0":
        return app
    unframed = False

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unframed(message: Message) -> None:
            nonlocal unframed
            if message["type"] == "http.response.start":
                unframed = all(name.lower() != b"content-length" for name, _ in message["headers"])
                if unframed:
                    cycle.chunked_encoding, cycle.keep_alive = False, False
            elif unframed:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unframed)  # type: ignore[arg-type]

    return answer  # type: ignore[return-value]
