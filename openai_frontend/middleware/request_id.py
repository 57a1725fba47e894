"""Gives each request an id, and each response the id and its processing time.

The outermost middleware: it makes the request's context, with the `send` that bypasses all others
for the parts of a streamed body.
"""

import random
import re
from collections.abc import Awaitable, Generator, Iterable
from time import perf_counter
from typing import cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.middleware.direct_writer import TRANSPORT, AsgiSink, DirectWriter
from openai_frontend.request_context.context import RequestContext, Transport, current

# Safe in a log line without escaping
_SAFE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def new_request_id() -> str:
    """An id in OpenAI's format."""
    # An id is unique but not secret, so `secrets`, which makes a system call, is not needed.
    return f"req_{random.getrandbits(128):032x}"


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's X-Request-Id if it is safe, else a new id."""
    for name, value in headers:
        if name == b"x-request-id" and _SAFE.fullmatch(value):
            return str(value, "ascii")
    return new_request_id()


class RequestId:
    """Begins and ends the request's context. Its id is the client's X-Request-Id if safe, else a
    new one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])
        transport = scope.get("state", {}).get(TRANSPORT) or Transport()
        transport.request_id = request_id
        direct = transport.sink if isinstance(transport.sink, DirectWriter) else None
        if direct is None:
            transport.sink = AsgiSink(send)
        writer = direct if direct is not None and direct.bypasses(send) else None
        context = RequestContext(request_id, transport)
        current.set(context)
        response = _RequestIdHeaders(context, send, writer)
        try:
            await self._app(scope, receive, response.send)
        finally:
            context.end()


class _Sent:
    """An awaitable for what was done without waiting."""

    def __await__(self) -> Generator[None, None, None]:
        return _NOTHING


_NOTHING = cast("Generator[None, None, None]", iter(()))  # ended, and so the same for everyone
_SENT = _Sent()


class _RequestIdHeaders:
    """Adds the headers when the response starts. Sends a complete response at once: its start is
    held until its body follows.
    """

    __slots__ = ("_context", "_received", "_send", "_start", "_writer")

    def __init__(self, context: RequestContext, send: Send, writer: DirectWriter | None) -> None:
        self._context = context
        self._send = send
        self._writer = writer
        self._start: Message | None = None
        self._received = perf_counter()

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self._context.response_started = True
            elapsed_ms = round((perf_counter() - self._received) * 1000)
            added = [
                (b"x-request-id", self._context.request_id.encode()),
                (b"openai-processing-ms", b"%d" % elapsed_ms),
            ]
            message["headers"] = headers = [*message.get("headers", ()), *added]
            if self._writer is not None and b"content-length" in dict(headers):
                self._start = message
                return _SENT
        elif self._start is not None:
            return self._complete(message)
        return self._send(message)

    def _complete(self, message: Message) -> Awaitable[None]:
        start, self._start = self._start, None
        if start is None or self._writer is None:
            raise RuntimeError("the response has not started")
        if not message.get("more_body") and self._writer.respond(
            start["status"], start["headers"], message.get("body", b"")
        ):
            return _SENT
        return self._send_both(start, message)

    async def _send_both(self, start: Message, body: Message) -> None:
        await self._send(start)
        await self._send(body)


class WithoutRequestId:
    """Removes the header X-Request-Id, because a server around this one adds it with the same
    value, as Ray Serve does.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def without(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                message["headers"] = [each for each in headers if each[0] != b"x-request-id"]
            await send(message)

        await self._app(scope, receive, without if scope["type"] == "http" else send)
