"""Responses that are sent as server-sent events while they are generated.

Not Starlette's StreamingResponse: its task group costs more than the stream's own work.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_frontend.errors import RequestCancelled
from openai_frontend.routers.request import CancelOnDisconnect
from openai_frontend.routers.stream_writer import MAX_BUFFER_BYTES, StreamWriter
from openai_frontend.serving.admission.concurrency_limit import Bursts
from openai_frontend.serving.error_reply import ErrorReply, log_failure, reply_for
from openai_frontend.serving.output.stream import ChunkStream
from openai_frontend.sse import KEEP_ALIVE, error_event

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


class EventStream(StreamedResponse):
    """OpenAI's chunks as events. Starts once the first burst is there.

    The opening frames are sent with it: alone, they would only give a false time to first token.
    """

    def __init__(
        self, chunks: ChunkStream, bursts: Bursts, limits: StreamLimits, headers: Headers = ()
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
                if not pending or chunks.finished:
                    continue
                self.start(writer)
                writer.write(pending)
                pending = b""
                if not begun:
                    begun = True
                    writer.on_drained = chunks.relay(writer.write, writer.socket)
            await writer.drained()
        last = pending + chunks.finish()
        self.start(writer)
        await writer.drained()
        return last
