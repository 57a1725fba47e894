"""Refuses bodies over a size, and one more where those of all requests are. Never holds a body."""

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.errors import RequestTooLarge, ServerOverloaded

# A client that still writes when its connection is closed may never see the answer, and tries
# again: so the rest of a body is taken and dropped, up to a size and a time.
DROPPED_SHARE = 4  # of the limit
DROP_TIMEOUT_S = 10.0


class BodyMemoryBudget:
    """For the bodies of all requests together, each until its answer's end: what was read of it is
    in the memory until then.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes  # may change; what is held goes on to count
        self.held = 0

    def take(self, length: int) -> None:
        """Raises ServerOverloaded where there is none."""
        if self.held + length > self.max_bytes:
            message = (
                f"The request bodies that the server holds reached their limit of "
                f"{self.max_bytes} bytes (--max-buffered-body-bytes). Retry later."
            )
            raise ServerOverloaded(message)
        self.held += length

    def retain(self, model_name: str, input_bytes: int) -> None:
        """The inputs of a cancelled request stay in memory until Triton releases it."""
        self.held += input_bytes

    def release(self, model_name: str, input_bytes: int) -> None:
        """Triton has released it."""
        self.held -= input_bytes


class BodyLimit:
    """Counts the bytes that come, for a length may be absent. Raises; `ErrorResponses` answers."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, room: BodyMemoryBudget) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._max_body_bytes, self._room)
        try:
            body.check(int(_header(scope, b"content-length") or 0))
            await self._app(scope, body.receive, send)
        except RequestTooLarge:
            if _header(scope, b"expect") is None:  # such a client waits for a word before it sends
                await body.drop_rest()
            raise
        finally:
            body.give_back()


class _Body:
    """One request's body as it comes in."""

    def __init__(self, receive: Receive, max_bytes: int, room: BodyMemoryBudget) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._room = room
        self._held = 0
        self._received = 0
        self._more = True

    async def receive(self) -> Message:
        message = await self._receive()
        length = len(message.get("body", b""))
        self._received += length
        self._more = message.get("more_body", False)
        self.check(self._received)
        self._room.take(length)
        self._held += length
        return message

    def give_back(self) -> None:
        """The request is over."""
        self._room.held -= self._held

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
