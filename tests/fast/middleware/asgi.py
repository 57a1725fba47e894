"""Calls an ASGI application by hand: for what a real server would not send, or would hide."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.request_context.context import RequestContext, current


@dataclass
class Sent:
    """What the application sent."""

    messages: list[Message] = field(default_factory=list)

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])


async def call(
    app: ASGIApp,
    *,
    headers: Iterable[tuple[bytes, bytes]] = (),
    body: Iterable[bytes] = (b"",),
    scope: dict[str, Any] | None = None,
    context: RequestContext | None = None,
) -> Sent:
    """One request, its body in the given pieces. `context` is its own; None: a new one."""
    context = context or RequestContext("req_1")
    pieces = list(body)
    sent = Sent()

    async def receive() -> Message:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Message) -> None:
        sent.messages.append(message)

    full = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": list(headers),
        **(scope or {}),
    }
    token = current.set(context)
    try:
        await app(full, receive, send)
    finally:
        current.reset(token)
        context.end()
    return sent


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body that it got."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})
