"""The events of generate_stream as an HTTP response."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_frontend.errors import RequestCancelled
from openai_frontend.routers.disconnect import CancelledOnDisconnect
from openai_frontend.routers.event_stream import HEADERS, start
from openai_frontend.serving.failure import describe, log_failure
from openai_frontend.sse import event


class EventStream(Response):
    """Starts with the first event, so that a failure before it still has its status. One that
    comes later is the last event.
    """

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.status_code = 200
        self.raw_headers = HEADERS
        self.background = None
        self._events = events
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        last = b""
        try:
            with CancelledOnDisconnect(scope):
                await self._send_events(send)
        except RequestCancelled as gone:
            log_failure(gone, scope["state"]["request_id"])
            return
        except (Exception, asyncio.CancelledError) as error:
            if not self._started:
                raise
            # The process edge of a stream: its status is sent, so its last event tells.
            log_failure(error, scope["state"]["request_id"])
            last = event(describe(error).in_kserve_form().body)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_events(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for burst in events:
                await self._start(send)
                await send({"type": "http.response.body", "body": burst, "more_body": True})
        await self._start(send)  # of a model that gave nothing

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await send(start())
