"""Responses that are sent as server-sent events while they are generated.

Not Starlette's StreamingResponse: its task group costs more than the stream's own work.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import ClassVar, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_frontend.errors import RequestCancelled, caught
from openai_frontend.generation import CompletionDelta
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.request import CancelOnDisconnect
from openai_frontend.serving.admission.concurrency_limit import Bursts
from openai_frontend.serving.error_reply import ErrorReply, log_failure, reply_for
from openai_frontend.sse import KEEP_ALIVE, error_event
from openai_frontend.text_relay import FrameWriter, Resume, StreamWriter

MAX_BUFFER_BYTES = 4 * 1024 * 1024


HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the events back
]

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Limits of one stream, and what makes its writer.

    `writer` takes the bytes that may wait for a slow client, and what to call beyond that.
    """

    writer: Callable[[int, Callable[[], None]], StreamWriter]
    buffer_bytes: int = MAX_BUFFER_BYTES  # that may be buffered for a slow client
    send_timeout_s: float = 30.0  # for as many, if they come from a source that can wait
    ping_interval_s: float = 15.0  # without data, before a comment is sent; 0: never


class StreamedResponse(Response, ABC):
    """Sends the status with the first data of `pump`, so that earlier failures keep their status.

    A later failure becomes the last event, or else closes the connection. Subclasses define the
    headers, the data and the failure's format.
    """

    # A keep-alive comment before the first event commits to status 200
    # (docs/decisions/0008-responses.md)
    comments: ClassVar[bool] = True

    def __init__(self, limits: StreamLimits, headers: Headers = HEADERS) -> None:
        self.status_code = 200
        self.raw_headers = [*headers]
        self.background = None
        self._limits = limits
        self._starting: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self.resume: Resume | None = None  # of a source that waits for a slow client

    @abstractmethod
    async def pump(self, writer: StreamWriter) -> bytes:
        """Calls `start`, writes data as it comes, and returns the last of it.

        Takes everything from a model without waiting for the client: the model's slot is free when
        the model has ended. What a slow client has not read waits in the writer.
        """

    def failure_data(self, failure: ErrorReply) -> bytes | None:
        """The end of a response that failed; None if its connection must be closed instead."""
        return error_event(failure.body)

    def keep_alive(self) -> bytes:
        """Data for a silent stream."""
        return KEEP_ALIVE

    def start(self) -> None:
        """Sends the status on the first call, before what is written afterwards."""
        if self._starting is None:
            self._writer.pause()  # pieces wait for the status
            self._starting = asyncio.get_running_loop().create_task(self._send_start())

    async def _send_start(self) -> None:
        message = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        with caught(self._writer.close):  # the next write raises the failure
            await self._send(message)
        self._sink.open(self._writer)

    async def drained(self) -> None:
        """Returns once nothing waits for a slow client."""
        while self._writer.paused:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    async def drained_by(self, deadline_s: float | None) -> None:
        """Like `drained`; disconnects a client that takes longer. Raises RequestCancelled."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self.drained()
        except TimeoutError:
            self._sink.drop()
            raise RequestCancelled("The client reads too slowly.") from None

    def _on_drained(self) -> None:
        if self.resume is not None:
            self.resume()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Middleware only looks at the start of a response, so the body bypasses it.
        context = current_request()
        self._send = send
        if context.transport.sink is None:
            raise RuntimeError("the request's context has no sink for its response")
        self._sink = context.transport.sink
        writer = self._writer = self._limits.writer(self._limits.buffer_bytes, self._sink.drop)
        writer.on_drained = self._on_drained
        silence = KeepAlive(writer, self.start, self._limits.ping_interval_s, self.keep_alive)
        if self.comments:
            silence.watch()
        try:
            with CancelOnDisconnect():  # not started if the client has already left
                # A task of its own: a wake-up then resumes four frames, not the twenty of the
                # middleware too. Measured at 64 streams: 18 % less CPU for each chunk, with the
                # way round them.
                last = await asyncio.get_running_loop().create_task(self.pump(writer))
        except RequestCancelled as gone:
            log_failure(gone, context.request_id)
            return
        except (Exception, asyncio.CancelledError) as error:
            if self._starting is None:
                raise
            # The status is sent, so the last event reports the failure.
            log_failure(error, context.request_id)
            end = self.failure_data(reply_for(error))
            await self.drained()  # after all earlier data
            if end is None:
                if not self._sink.truncate():
                    raise
                return
            last = end
        finally:
            silence.stop()
            self._close()
            context.streamed_bytes = writer.body_bytes
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def _close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        self._writer.close()
        self._sink.close()


class ReadingPace:
    """How long a client that has fallen behind may take, for a source that can wait for it. While
    more than the buffer of a stream waits, the client must read as much in each send timeout.
    """

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._since_s: float | None = None  # None: not behind
        self._written_bytes = 0

    def deadline_s(self, *, waiting_bytes: int, written_bytes: int, now_s: float) -> float | None:
        """Until when the client must have read what is written; None if that does not matter."""
        enough = self._limits.buffer_bytes
        if waiting_bytes <= enough:
            self._since_s = None
            return None
        if self._since_s is None or written_bytes - self._written_bytes >= enough:
            self._since_s, self._written_bytes = now_s, written_bytes
        return self._since_s + self._limits.send_timeout_s


class KeepAlive:
    """Sends SSE comments while a stream is idle, so that proxies keep the connection.

    Checks periodically, so that tokens cost nothing: the first comment comes between one and two
    times `every_s` after an event.
    """

    def __init__(
        self,
        writer: StreamWriter,
        start: Callable[[], None],
        every_s: float,
        data: Callable[[], bytes] = lambda: KEEP_ALIVE,
    ) -> None:
        """`data` returns what is sent each time."""
        self._writer = writer
        self._start = start
        self._data = data
        self._every_s = every_s
        self._next: asyncio.TimerHandle | None = None
        self._stream: asyncio.Task[object] | None = None
        self._body_bytes = 0  # at the last check

    def watch(self) -> None:
        """Starts the timer, unless comments are disabled. Called by the task of the stream, which
        a failed write cancels.
        """
        if self._every_s:
            self._stream = asyncio.current_task()
            self._wait()

    def _wait(self) -> None:
        self._next = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _look(self) -> None:
        self._wait()
        written, self._body_bytes = self._body_bytes, self._writer.body_bytes
        if self._body_bytes == written and not self._writer.paused:
            with caught(self._end_stream):
                data = self._data()
                self._start()
                self._writer(data)
                self._body_bytes += len(data)

    def _end_stream(self, error: Exception) -> None:
        self.stop()
        if self._stream is not None:
            self._stream.cancel(str(error))


class EventSource(Protocol):
    """The events of a stream, in order. `serving.output.stream.ChunkStream` documents them."""

    @property
    def finished(self) -> bool: ...
    def start(self) -> bytes: ...
    def feed(self, choice: int, deltas: list[CompletionDelta], /) -> bytes: ...
    def relay(self, write: FrameWriter, /) -> Resume | None: ...
    def relay_segment(self) -> None: ...
    def keep_alive(self) -> bytes | None: ...
    def failure(self, failure: ErrorReply, unsent: bytes, /) -> bytes: ...
    def finish(self) -> bytes: ...


class EventStream(StreamedResponse):
    """OpenAI's chunks as events. Starts once the first burst is there.

    The opening frames are sent with it: alone, they would only give a false time to first token.
    """

    def __init__(
        self,
        chunks: EventSource,
        bursts: Bursts,
        limits: StreamLimits,
        headers: Headers = (),
        *,
        opens_late: bool = False,
    ) -> None:
        """`opens_late`: the opening has counts that the first burst reports. Else it is written
        while the model reads the prompt, which costs the first token nothing.
        """
        super().__init__(limits, [*HEADERS, *headers])
        self._chunks = chunks
        self._bursts = bursts
        self._opening = b""  # until it is sent
        self._waits = opens_late

    def keep_alive(self) -> bytes:
        """An event of the dialect follows the opening."""
        self._open_late()
        event = self._chunks.keep_alive()
        if event is None:
            return KEEP_ALIVE
        opening, self._opening = self._opening, b""
        return opening + event

    def failure_data(self, failure: ErrorReply) -> bytes:
        return self._chunks.failure(failure, self._opening)

    def _open_late(self) -> None:
        if self._waits:
            self._waits, self._opening = False, self._chunks.start()

    async def pump(self, writer: StreamWriter) -> bytes:
        """Sends the data of each wake-up in one write, the last together with the end.

        Does not wait for slow clients: the writer limits how much is buffered.

        Start, end and failures pass through a task. In between, plain text bypasses it: native
        code frames the text and writes it from its callback.
        """
        chunks = self._chunks
        self._opening, pending, begun = b"" if self._waits else chunks.start(), b"", False
        async with aclosing(self._bursts) as bursts:
            async for burst in bursts:
                if not begun:
                    self._open_late()
                for choice, deltas in burst:
                    pending += chunks.feed(choice, deltas)
                if chunks.finished or not (begun or pending or self._opening):
                    continue
                if not begun:
                    pending, self._opening = self._opening + pending, b""
                if pending:
                    self.start()
                    writer(pending)
                    pending = b""
                if not begun:
                    begun = True
                    self.resume = chunks.relay(writer)
                chunks.relay_segment()
            await self.drained()
        last = self._opening + pending + chunks.finish()
        self._opening = b""
        self.start()
        await self.drained()
        return last
