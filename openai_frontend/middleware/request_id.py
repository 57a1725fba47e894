"""Gives each request an id, and each response the id and its processing time.

The outermost middleware: it also stores the `send` that bypasses all others for body parts.
"""

import random
import re
from collections.abc import Awaitable
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.logs import formatters
from openai_frontend.middleware import direct_writer

# Safe in a log line without escaping
_SAFE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def new_request_id() -> str:
    """An id in OpenAI's format."""
    # An id is unique but not secret, so `secrets`, which makes a system call, is not needed.
    return f"req_{random.getrandbits(128):032x}"


class RequestId:
    """Sets `scope["state"]["request_id"]`: the client's X-Request-Id if safe, else a new id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._writes_directly = direct_writer.is_supported()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _from_client(scope) or new_request_id()
        formatters.request_id.set(request_id)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        # For parts of a body, which no other middleware reads.
        state["send_body"] = send
        connection_send = state.pop("connection_send", send)  # the server's, where `send` wraps it
        state["direct_writer"] = (
            direct_writer.direct_writer(connection_send) if self._writes_directly else None
        )
        try:
            await self._app(scope, receive, _RequestIdHeaders(request_id, send).send)
        finally:
            # They refer to the object that holds the state: a reference cycle
            del state["send_body"], state["direct_writer"]


class _RequestIdHeaders:
    """Adds the headers when the response starts."""

    def __init__(self, request_id: str, send: Send) -> None:
        self._request_id = request_id
        self._send = send
        self._received = perf_counter()

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            elapsed_ms = round((perf_counter() - self._received) * 1000)
            added = [
                (b"x-request-id", self._request_id.encode()),
                (b"openai-processing-ms", b"%d" % elapsed_ms),
            ]
            message["headers"] = [*message.get("headers", ()), *added]
        return self._send(message)


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


def _from_client(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SAFE.fullmatch(value):
            return str(value, "ascii")
    return None
