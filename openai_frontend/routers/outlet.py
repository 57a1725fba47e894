"""Writes the body of a streamed response, from tasks and callbacks alike. Knows no event's form."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Protocol

from starlette.types import Send

from openai_frontend.generation import ChunkedSocket


class AtOnce(Protocol):
    """The server's short way for a piece of a body."""

    def __call__(self, piece: bytes, /) -> bool:
        """Whether it was written."""

    def socket(self) -> ChunkedSocket | None:
        """The shortest: past the server's transport."""


class Outlet:
    """One client's end of a stream. What is written leaves in the order of the calls.

    ASGI's `send` is a coroutine, but one that does not wait unless the client is slow: a callback
    runs it to its end there and then, without a task or a turn of the event loop. Where the server
    has a shorter way for what can be written at once, `at_once` says of each piece whether it was.
    """

    def __init__(self, send: Send, at_once: AtOnce | None = None) -> None:
        self._send = send
        self._at_once = at_once
        self._socket: ChunkedSocket | None = None
        self._slow: asyncio.Task[None] | None = None  # waits for the client
        self._waiting = b""
        self.on_drained: Callable[[], None] | None = None

    def socket(self) -> ChunkedSocket | None:
        """The client's socket, for who writes many pieces; asked for once."""
        socket = None if self._at_once is None else self._at_once.socket()
        if socket is not None:
            idle = socket.idle
            socket.idle = lambda: self._slow is None and idle()
            self._socket = socket
        return socket

    def write(self, body: bytes) -> bool:
        """Sends; True where the client is slow and the body waits. Then better write no more
        before `on_drained` is called.
        """
        if self._socket is not None and self._socket.before_write is not None:
            self._socket.before_write()
        if self._slow is not None:
            self._waiting += body
            return True
        if self._at_once is not None and self._at_once(body):
            return False
        sending: Coroutine[Any, Any, None] = self._send(_body(body))  # type: ignore[assignment]
        try:
            awaited = sending.send(None)
        except StopIteration:
            return False
        self._slow = asyncio.get_running_loop().create_task(self._wait(sending, awaited))
        return True

    async def _wait(self, sending: Coroutine[Any, Any, None], awaited: Any) -> None:
        await _resumed(sending, awaited)
        while self._waiting:
            body, self._waiting = self._waiting, b""
            await self._send(_body(body))
        self._slow = None
        if self.on_drained is not None:
            self.on_drained()

    async def drained(self) -> None:
        """Returns once all has been sent; raises what `send` raised."""
        while self._slow is not None:
            await asyncio.shield(self._slow)

    def close(self) -> None:
        """Drops what waits, and lets go of the socket."""
        self._waiting = b""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._slow is not None:
            self._slow.cancel()


def _body(body: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": True}


@coroutine
def _resumed(begun: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Goes on with a coroutine that has been run as far as its first wait, for `awaited`."""
    try:
        while True:
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001  whatever is thrown is the coroutine's
                awaited = begun.throw(error)
            else:
                awaited = begun.send(None)
    except StopIteration:
        return
