"""A streamed answer as an HTTP response: one write for all that one wake-up brought.

Begin, end and failures pass through a task. Between them an answer of text alone takes the short
way: its frames come ready from below, and leave from the callback that they come in.
"""

from contextlib import aclosing

from openai_frontend.routers.outlet import Outlet
from openai_frontend.routers.streamed_response import Headers, StreamedResponse, StreamLimits
from openai_frontend.serving.admission.concurrency_limit import Bursts
from openai_frontend.serving.output.endings import ChunkStream


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

    async def pump(self, outlet: Outlet) -> bytes:
        """Sends what each wake-up brought. Once every choice is finished the end follows at once,
        and the two leave in one write.

        No wait for a slow client: the outlet says how much may wait.
        """
        chunks = self._chunks
        pending, begun = chunks.start(), False
        async with aclosing(self._bursts) as bursts:
            async for burst in bursts:
                for choice, deltas in burst:
                    pending += chunks.feed(choice, deltas)
                if not pending or chunks.finished:
                    continue
                self.start(outlet)
                outlet.write(pending)
                pending = b""
                if not begun:
                    begun = True
                    outlet.on_drained = chunks.relay(outlet.write, outlet.socket)
            await outlet.drained()
        last = pending + chunks.finish()
        self.start(outlet)
        await outlet.drained()
        return last
