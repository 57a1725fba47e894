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
    """The settings of streams."""

    buffer_bytes: int = MAX_BUFFER_BYTES  # that may wait for a slow client
    ping_interval_s: float = 15.0  # of silence, after which a comment is sent; 0: never


class StreamedResponse(Response, ABC):
    """Starts with what `pump` sends first, so that a failure before it still has its status.

    One that comes later is the last event. The failure's form, and what is sent, are a subclass's.
    """

    # A comment in the silence before the first event decides for status 200
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
        """Sends what there is as it comes, after `start`; returns the last of it."""

    def failure_body(self, failure: ErrorReply) -> bytes:
        """The data of the event that tells a failure."""
        return failure.body

    def start(self, writer: StreamWriter) -> None:
        """Sends the status, once; what has been written before it never is."""
        if not self._started:
            self._started = True
            writer.begin(self._send({"type": "http.response.start", "status": 200,
                                     "headers": self.raw_headers}))  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Middleware looks at the start of a response alone; what follows need not pass it.
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
            with CancelOnDisconnect(scope):  # what a client has left before is not begun
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
            # The process edge of a stream: its status is sent, so its last event tells.
            log_failure(error, state["request_id"])
            last = error_event(self.failure_body(reply_for(error)))
            await writer.drained()  # after all that came before it
        finally:
            silence.stop()
            writer.close()
        await send({"type": "http.response.body", "body": last, "more_body": False})


class KeepAlive:
    """Breaks the silence of a stream by comments, each where an event would stand.

    Looks once in a while, so that a token costs nothing: between one and two times `every_s` pass
    before the first comment after an event.
    """

    def __init__(self, writer: StreamWriter, start: Callable[[], None], every_s: float) -> None:
        self._writer = writer
        self._start = start
        self._every_s = every_s
        self._next: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """From now on, where there is to be anything at all."""
        if self._every_s:
            self._next = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def stop(self) -> None:
        """The stream ends."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _look(self) -> None:
        self.watch()
        if self._writer.is_silent():
            self._start()
            self._writer.comment(KEEP_ALIVE)


class EventStream(StreamedResponse):
    """Starts once the first burst is there.

    The opening frames leave in the same write: alone they would tell a client nothing but a false
    time to first token.
    """

    def __init__(
        self, chunks: ChunkStream, bursts: Bursts, limits: StreamLimits, headers: Headers = ()
    ) -> None:
        super().__init__(limits, headers)
        self._chunks = chunks
        self._bursts = bursts

    async def pump(self, writer: StreamWriter) -> bytes:
        """Sends what each wake-up brought. Once every choice is finished the end follows at once,
        and the two leave in one write.

        No wait for a slow client: the writer says how much may wait.
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
