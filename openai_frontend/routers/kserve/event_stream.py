"""The events of generate_stream as an HTTP response."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from openai_frontend.routers.outlet import Outlet
from openai_frontend.routers.streamed_response import StreamedResponse, StreamLimits
from openai_frontend.serving.error_reply import ErrorReply


class EventStream(StreamedResponse):
    """Starts with the first event."""

    comments = False  # Triton's own clients take every line for an event

    def __init__(self, events: AsyncGenerator[bytes, None], limits: StreamLimits) -> None:
        super().__init__(limits)
        self._events = events

    async def pump(self, outlet: Outlet) -> bytes:
        """Sends the events of each burst; nothing ends them."""
        async with aclosing(self._events) as events:
            async for burst in events:
                self.start(outlet)
                outlet.write(burst)
        self.start(outlet)  # of a model that gave nothing
        await outlet.drained()
        return b""

    def failure_body(self, failure: ErrorReply) -> bytes:
        """KServe's envelope."""
        return failure.in_kserve_form().body
