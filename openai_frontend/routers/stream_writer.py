"""Writes the body of a streamed response, from tasks and callbacks alike. Knows no event format."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Protocol

from starlette.types import Send

from openai_frontend.errors import RequestCancelled
from openai_frontend.generation import ChunkedSocket

MAX_BUFFER_BYTES = 4 * 1024 * 1024

# While the client is slow, the source gathers text, which counts against the buffer. This interval
# moves it here; tokens that are gathered together become one frame.
FLUSH_INTERVAL_S = 0.25


class DirectWriter(Protocol):
    """The server's direct write to the transport, without ASGI."""

    def __call__(self, piece: bytes, /) -> bool:
        """Writes a piece of the body; True if it was written."""

    def socket(self) -> ChunkedSocket | None:
        """The socket itself, to bypass even the transport."""

    def drop(self) -> None:
        """Closes the connection of a client that reads too slowly."""


class StreamWriter:
    """Writes the body of one stream, in the order of the calls.

    ASGI's `send` is a coroutine, but one that does not wait unless the client is slow: a callback
    runs it to its end there and then, without a task or a turn of the event loop. Where the server
    can write at once, `direct_writer` says of each piece whether it was written.

    Data for a slow client is buffered up to a limit. Beyond it the client is disconnected, because
    nothing slows the model down.
    """

    def __init__(
        self,
        send: Send,
        direct_writer: DirectWriter | None = None,
        *,
        max_buffer_bytes: int = MAX_BUFFER_BYTES,
    ) -> None:
        self._send = send
        self._direct_writer = direct_writer
        self._max_waiting_bytes = max_buffer_bytes
        self._socket: ChunkedSocket | None = None
        self._idle: Callable[[], bool] = _never
        self._slow: asyncio.Task[None] | None = None  # waits for a slow client
        self._flush_timer: asyncio.TimerHandle | None = None
        self._buffer = bytearray()
        self._dropped = False
        self._written = False
        # Resumes the source after `write` returned True. Also called every FLUSH_INTERVAL_S before
        # that, so that what the source has gathered counts here.
        self.on_drained: Callable[[], None] | None = None

    def socket(self) -> ChunkedSocket | None:
        """The client's socket, for a source that writes many pieces. Call it once."""
        socket = None if self._direct_writer is None else self._direct_writer.socket()
        if socket is not None:
            self._idle, socket.idle = socket.idle, self._idle_to_write
            self._socket = socket
        return socket

    def _idle_to_write(self) -> bool:
        """Whether a piece may bypass this writer."""
        self._written = True
        return self._slow is None and self._idle()

    def begin(self, start: Awaitable[None]) -> None:
        """Sends the start of the response."""
        self._run(start)  # type: ignore[arg-type]  # as ASGI's `send` makes it: a coroutine

    def write(self, body: bytes) -> bool:
        """Sends; True if the client is slow and the body is buffered.

        Then the source should wait for `on_drained`.
        """
        self._written = True
        if self._socket is not None and self._socket.before_write is not None:
            self._socket.before_write()
        if self._slow is not None:
            self._keep(body)
            return True
        if self._direct_writer is not None and self._direct_writer(body):
            return False
        return self._run(self._send(_body(body)))  # type: ignore[arg-type]

    def comment(self, body: bytes) -> None:
        """Writes a keep-alive comment, which `is_silent` does not count."""
        self.write(body)
        self._written = False

    def is_silent(self) -> bool:
        """Whether nothing was written or buffered since the last call."""
        silent = not self._written and self._slow is None
        self._written = False
        if self._socket is not None and self._socket.before_write is not None:
            self._socket.before_write()  # the next piece checks whether the transport is idle
        return silent

    def _run(self, sending: Coroutine[Any, Any, None]) -> bool:
        """Runs a coroutine up to its first wait; a task then runs the rest."""
        try:
            awaited = sending.send(None)
        except StopIteration:
            return False
        self._slow = asyncio.get_running_loop().create_task(self._wait(sending, awaited))
        self._flush_later()
        return True

    def _keep(self, body: bytes) -> None:
        self._buffer += body
        if len(self._buffer) <= self._max_waiting_bytes and not self._dropped:
            return
        self._buffer.clear()
        if self._direct_writer is None:  # the server cannot disconnect: cancel the request instead
            raise RequestCancelled("The client reads too slowly.")
        if not self._dropped:
            self._dropped = True
            self._direct_writer.drop()

    def _flush_later(self) -> None:
        self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        if self._slow is not None and not self._slow.done():
            self._flush_later()
            if self.on_drained is not None:
                self.on_drained()

    async def _wait(self, sending: Coroutine[Any, Any, None], awaited: Any) -> None:
        await _resumed(sending, awaited)
        while self._buffer:
            body = bytes(self._buffer)
            self._buffer.clear()
            await self._send(_body(body))
        self._slow = None
        if self.on_drained is not None:
            self.on_drained()

    async def drained(self) -> None:
        """Waits until everything is sent; raises what `send` raised."""
        while self._slow is not None:
            await asyncio.shield(self._slow)

    def close(self) -> None:
        """Discards buffered data and releases the socket."""
        self._buffer.clear()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._socket is not None:
            self._socket.close()
            self._socket, self._idle = None, _never
        if self._slow is not None:
            self._slow.cancel()


def _never() -> bool:
    return False


def _body(body: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": True}


@coroutine
def _resumed(begun: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Continues a coroutine that has run up to its first wait, for `awaited`."""
    try:
        while True:
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001  thrown into the coroutine
                awaited = begun.throw(error)
            else:
                awaited = begun.send(None)
    except StopIteration:
        return
