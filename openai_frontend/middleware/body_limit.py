"""Refuses bodies over a size. Never holds a body."""

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.errors import RequestTooLarge

# A client that still writes when its connection is closed may never see the answer, and tries
# again: so the rest of a body is taken and dropped, up to a size and a time.
DROPPED_SHARE = 4  # of the limit
DROP_TIMEOUT_S = 10.0


class BodyLimit:
    """Counts the bytes that come, for a length may be absent. Raises; `Failures` answers."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._max_body_bytes)
        try:
            body.check(int(_header(scope, b"content-length") or 0))
            await self._app(scope, body.receive, send)
        except RequestTooLarge:
            if _header(scope, b"expect") is None:  # such a client waits for a word before it sends
                await body.drop_rest()
            raise


class _Body:
    """One request's body as it comes in."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._received = 0
        self._more = True

    async def receive(self) -> Message:
        message = await self._receive()
        self._received += len(message.get("body", b""))
        self._more = message.get("more_body", False)
        self.check(self._received)
        return message

    async def drop_rest(self) -> None:
        most = self._max_bytes * (1 + DROPPED_SHARE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DROP_TIMEOUT_S):
                while self._more and self._received <= most:
                    message = await self._receive()
                    self._received += len(message.get("body", b""))
                    self._more = message.get("more_body", False)

    def check(self, length: int) -> None:
        if length > self._max_bytes:
            message = f"The request body is larger than {self._max_bytes} bytes."
            raise RequestTooLarge(message)


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None
