"""Responses that are sent as server-sent events while they are generated.

Not Starlette's StreamingResponse: its task group costs more than the stream's own work.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from types import coroutine
from typing import Any, ClassVar, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_frontend.errors import RequestCancelled
from openai_frontend.generation import ChunkedSocket, CompletionDelta, FrameWriter, Resume
from openai_frontend.routers.request import CancelOnDisconnect
from openai_frontend.serving.admission.concurrency_limit import Bursts
from openai_frontend.serving.error_reply import ErrorReply, log_failure, reply_for
from openai_frontend.sse import KEEP_ALIVE, error_event

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


HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the events back
]

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Limits of one stream."""

    buffer_bytes: int = MAX_BUFFER_BYTES  # that may be buffered for a slow client
    ping_interval_s: float = 15.0  # without data, before a comment is sent; 0: never


class StreamedResponse(Response, ABC):
    """Sends the status with the first data of `pump`, so that earlier failures keep their status.

    A later failure becomes the last event. Subclasses define the data and the failure's format.
    """

    # A keep-alive comment before the first event commits to status 200
    # (docs/decisions/0024-sse-keep-alive.md)
    comments: ClassVar[bool] = True

    def __init__(self, limits: StreamLimits, headers: Headers = ()) -> None:
        self.status_code = 200
        self.raw_headers = [*HEADERS, *headers]
        self.background = None
        self._limits = limits
        self._started = False

    @abstractmethod
    async def pump(self, writer: StreamWriter) -> bytes:
        """Calls `start`, writes data as it comes, and returns the last of it."""

    def failure_body(self, failure: ErrorReply) -> bytes:
        """The data of the event that reports a failure."""
        return failure.body

    def start(self, writer: StreamWriter) -> None:
        """Sends the status on the first call, before anything is written."""
        if not self._started:
            self._started = True
            writer.begin(self._send({"type": "http.response.start", "status": 200,
                                     "headers": self.raw_headers}))  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Middleware only looks at the start of a response, so the body bypasses it.
        state = scope["state"]
        writer = StreamWriter(
            state.get("send_body", send),
            state.get("direct_writer"),
            max_buffer_bytes=self._limits.buffer_bytes,
        )
        self._send = send
        silence = KeepAlive(writer, partial(self.start, writer), self._limits.ping_interval_s)
        if self.comments:
            silence.watch()
        try:
            with CancelOnDisconnect(scope):  # not started if the client has already left
                # A task of its own: a wake-up then resumes four frames, not the twenty of the
                # middleware too. Measured at 64 streams: 18 % less CPU for each chunk, with the
                # way round them.
                last = await asyncio.get_running_loop().create_task(self.pump(writer))
        except RequestCancelled as gone:
            log_failure(gone, state["request_id"])
            return
        except (Exception, asyncio.CancelledError) as error:
            if not self._started:
                raise
            # The status is sent, so the last event reports the failure.
            log_failure(error, state["request_id"])
            last = error_event(self.failure_body(reply_for(error)))
            await writer.drained()  # after all earlier data
        finally:
            silence.stop()
            writer.close()
        await send({"type": "http.response.body", "body": last, "more_body": False})


class KeepAlive:
    """Sends SSE comments while a stream is idle, so that proxies keep the connection.

    Checks periodically, so that tokens cost nothing: the first comment comes between one and two
    times `every_s` after an event.
    """

    def __init__(self, writer: StreamWriter, start: Callable[[], None], every_s: float) -> None:
        self._writer = writer
        self._start = start
        self._every_s = every_s
        self._next: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Starts the timer, unless comments are disabled."""
        if self._every_s:
            self._next = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _look(self) -> None:
        self.watch()
        if self._writer.is_silent():
            self._start()
            self._writer.comment(KEEP_ALIVE)


class EventSource(Protocol):
    """The events of a stream, in order. `serving.output.stream.ChunkStream` documents them."""

    @property
    def finished(self) -> bool: ...
    def start(self) -> bytes: ...
    def feed(self, choice: int, deltas: list[CompletionDelta], /) -> bytes: ...
    def relay(
        self, write: FrameWriter, socket: Callable[[], ChunkedSocket | None], /
    ) -> Resume | None: ...
    def relay_segment(self) -> None: ...
    def finish(self) -> bytes: ...


class EventStream(StreamedResponse):
    """OpenAI's chunks as events. Starts once the first burst is there.

    The opening frames are sent with it: alone, they would only give a false time to first token.
    """

    def __init__(
        self, chunks: EventSource, bursts: Bursts, limits: StreamLimits, headers: Headers = ()
    ) -> None:
        super().__init__(limits, headers)
        self._chunks = chunks
        self._bursts = bursts

    async def pump(self, writer: StreamWriter) -> bytes:
        """Sends the data of each wake-up in one write, the last together with the end.

        Does not wait for slow clients: the writer limits how much is buffered.

        Start, end and failures pass through a task. In between, plain text bypasses it: native
        code frames the text and writes it from its callback.
        """
        chunks = self._chunks
        pending, begun = chunks.start(), False
        async with aclosing(self._bursts) as bursts:
            async for burst in bursts:
                for choice, deltas in burst:
                    pending += chunks.feed(choice, deltas)
                if chunks.finished or not (begun or pending):
                    continue
                if pending:
                    self.start(writer)
                    writer.write(pending)
                    pending = b""
                if not begun:
                    begun = True
                    writer.on_drained = chunks.relay(writer.write, writer.socket)
                chunks.relay_segment()
            await writer.drained()
        last = pending + chunks.finish()
        self.start(writer)
        await writer.drained()
        return last
