"""A streamed answer as an HTTP response: one write for all that one wake-up brought.

Begin, end and failures pass through a task. Between them an answer of text alone takes the short
way: its frames come ready from below, and leave from the callback that they come in.

Not Starlette's StreamingResponse: its task group costs more than the stream's own work.
"""

import asyncio
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_frontend.errors import RequestCancelled
from openai_frontend.routers.disconnect import CancelledOnDisconnect
from openai_frontend.routers.outlet import Outlet
from openai_frontend.serving.admission import Bursts
from openai_frontend.serving.endings import ChunkStream
from openai_frontend.serving.failure import describe, log_failure
from openai_frontend.sse import error_event

HEADERS = [
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
        self.raw_headers = HEADERS
        self.background = None
        self._chunks = chunks
        self._bursts = bursts
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        last = b""
        # Middleware looks at the start of a response alone; what follows need not pass it.
        state = scope["state"]
        send_body, at_once = state.get("send_body", send), state.get("write_body")
        # A task of its own: a wake-up then resumes four frames, not the twenty of the middleware
        # too. Measured at 64 streams: 18 % less CPU for each chunk, with the line above.
        outlet = Outlet(send_body, at_once)
        pump = asyncio.get_running_loop().create_task(self._pump(send, outlet))
        try:
            with CancelledOnDisconnect(scope):
                last = await pump
        except RequestCancelled as gone:
            log_failure(gone, scope["state"]["request_id"])
            return
        except (Exception, asyncio.CancelledError) as error:
            if not self._started:
                raise
            # The process edge of a stream: its status is sent, so its last event tells.
            log_failure(error, scope["state"]["request_id"])
            last = error_event(describe(error).body)
        finally:
            outlet.close()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _pump(self, send: Send, outlet: Outlet) -> bytes:
        """Sends what each wake-up brought; returns the last of it, which ends the response."""
        try:
            return await self._send_bursts(send, outlet)
        except Exception:
            await outlet.drained()  # the failure is the last event, after all that came before it
            raise

    async def _send_bursts(self, send: Send, outlet: Outlet) -> bytes:
        """Once every choice is finished the end follows at once, and the two leave in one write."""
        chunks = self._chunks
        pending = chunks.start()
        async with aclosing(self._bursts) as bursts:
            async for burst in bursts:
                for choice, deltas in burst:
                    pending += chunks.feed(choice, deltas)
                if not pending or chunks.finished:
                    continue
                if not self._started:
                    self._started = True
                    await send(start())
                    outlet.write(pending)
                    outlet.on_drained = chunks.relay(outlet.write, outlet.socket)
                else:
                    outlet.write(pending)
                pending = b""
                await outlet.drained()
            await outlet.drained()
        last = pending + chunks.finish()
        if not self._started:
            self._started = True
            await send(start())
        return last


def start() -> dict[str, object]:
    """The message that begins a stream of events."""
    return {"type": "http.response.start", "status": 200, "headers": HEADERS}
