"""A streamed answer as an HTTP response: one write for all that one wake-up brought.

Not Starlette's StreamingResponse: its task group costs more than the stream's own work.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_frontend.errors import RequestCancelled
from openai_frontend.routers.disconnect import CancelOnDisconnect
from openai_frontend.serving.admission import Bursts
from openai_frontend.serving.endings import ChunkStream
from openai_frontend.serving.failure import describe, log_failure
from openai_frontend.sse import error_event

Writes = AsyncGenerator[tuple[bytes, bool], None]  # bytes, and whether more follows

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the events back
]


class EventStream(Response):
    """Starts once the first burst is there, so that a failure before it still has its status.

    The opening frames leave in the same write: alone they would tell a client nothing but a false
    time to first token.
    """

    def __init__(self, chunks: ChunkStream, bursts: Bursts) -> None:
        self.status_code = 200
        self.raw_headers = _HEADERS
        self.background = None
        self._chunks = chunks
        self._bursts = bursts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        last = b""
        try:
            async with CancelOnDisconnect(receive), aclosing(self._writes()) as writes:
                async for write, more in writes:
                    if not started:
                        started = True
                        await send(_start())
                    if more:
                        await send(_body(write, more=True))
                    else:
                        last = write
        except RequestCancelled as gone:
            log_failure(gone, scope["state"]["request_id"])
            return
        except (Exception, asyncio.CancelledError) as error:
            if not started:
                raise
            # The process edge of a stream: its status is sent, so its last event tells.
            log_failure(error, scope["state"]["request_id"])
            last = error_event(describe(error).body)
        # Outside CancelOnDisconnect: a finished response looks like a disconnect to its watcher.
        await send(_body(last, more=False))

    async def _writes(self) -> Writes:
        """What each wake-up brought; the last one waits for the end, which follows it at once."""
        chunks = self._chunks
        pending = chunks.start()
        async with aclosing(self._bursts) as bursts:
            async for burst in bursts:
                for choice, deltas in burst:
                    pending += chunks.feed(choice, deltas)
                if pending and not chunks.finished:
                    yield pending, True
                    pending = b""
        yield pending + chunks.finish(), False


def _start() -> dict[str, object]:
    return {"type": "http.response.start", "status": 200, "headers": _HEADERS}


def _body(body: bytes, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}
