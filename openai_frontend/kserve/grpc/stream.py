"""ModelStreamInfer: requests of one stream run side by side, and their responses are one stream."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial

from openai_frontend.errors import RequestCancelled
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.serving.error_reply import log_failure, reply_for

# Serialized responses of one request, in the order of the model's
Serialized = AsyncGenerator[bytes, None]
# Called once the model has the request: the next one of the stream may follow
Started = Callable[[], None]
Answer = Callable[[bytes, RequestContext, Started], Serialized]
# Awaits a request's end; raises RequestTimedOut
InTime = Callable[[Awaitable[None]], Awaitable[None]]
# The serialized response that reports an error, of a serialized request and the message
Failure = Callable[[bytes, str], bytes]


class Outbox:
    """Responses that wait for the connection, at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, response: bytes) -> None:
        """Raises RequestCancelled if the client reads too slowly."""
        if self._waiting and self._bytes + len(response) > self._max_bytes:
            message = f"The client left more than {self._max_bytes} bytes of its stream unread."
            raise RequestCancelled(message)
        self._waiting.append(response)
        self._bytes += len(response)
        self._wake()

    def close(self) -> None:
        """No further response follows."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> bytes | None:
        """The next response; None if none waits."""
        if not self._waiting:
            return None
        response = self._waiting.popleft()
        self._bytes -= len(response)
        return response

    async def wait(self) -> bool:
        """Wait for another response. False: there is none."""
        if not self._waiting and not self._closed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return bool(self._waiting)


class InferStream:
    """Runs the requests of one stream. They start in order; their responses may mix."""

    def __init__(
        self,
        context: RequestContext,
        answer: Answer,
        failure: Failure,
        in_time: InTime,
        max_bytes: int,
    ) -> None:
        """`context` is the call's; each request gets one of its own. `in_time` awaits a request."""
        self._context = context
        self._in_time = in_time
        self._number = 0
        self._answer = answer
        self._failure = failure
        self._outbox = Outbox(max_bytes)

    async def responses(self, requests: AsyncIterator[bytes]) -> Serialized:
        """Ends once all requests of the stream are answered. Closing it cancels them."""
        running = asyncio.ensure_future(self._run(requests))
        running.add_done_callback(lambda _: self._outbox.close())
        try:
            while await self._outbox.wait():
                while (response := self._outbox.take()) is not None:
                    yield response
            await running
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def _run(self, requests: AsyncIterator[bytes]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as group:
                async for request in requests:
                    started = loop.create_future()
                    ready = partial(_set, started)
                    group.create_task(self._request(request, ready)).add_done_callback(ready)
                    await started  # requests of a sequence must reach the core in order
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _request(self, request: bytes, started: Started) -> None:
        call = self._context
        self._number += 1
        # An id of its own: engines refuse two requests with one id
        request_id = f"{call.request_id}-{self._number}"
        context = RequestContext(request_id, call.transport, record=call.record)
        current.set(context)
        try:
            await self._in_time(self._answer_request(request, context, started))
        except RequestCancelled:
            raise
        except Exception as error:  # noqa: BLE001  reported in the stream
            log_failure(error, context.request_id)
            call.rejection = reply_for(error).rejection
            self._outbox.put(self._failure(request, reply_for(error).message))
        finally:
            call.model_name, call.model = context.model_name, context.model
            context.end()

    async def _answer_request(
        self, request: bytes, context: RequestContext, started: Started
    ) -> None:
        async with aclosing(self._answer(request, context, started)) as responses:
            async for response in responses:
                self._outbox.put(response)


def _set(started: asyncio.Future[None], *_: object) -> None:
    if not started.done():
        started.set_result(None)
