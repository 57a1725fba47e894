"""CancelOnDisconnect ends a request's work on a disconnect or a timeout."""

import asyncio
import contextlib
import gc
from weakref import ref

import pytest
from starlette.types import Message

from openai_frontend import triton
from openai_frontend.errors import RequestCancelled, RequestTimedOut
from openai_frontend.middleware.direct_writer import AsgiSink
from openai_frontend.request_context.context import RequestContext, Transport, current
from openai_frontend.routers.request import CancelOnDisconnect
from openai_frontend.routers.streaming import StreamedResponse, StreamLimits
from openai_frontend.text_relay import StreamWriter


class Client:
    """A connection whose client disconnects when `goes` is called."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport = Transport(self.lost)
        current.set(RequestContext("req_1", self.transport))

    def goes(self) -> None:
        self.lost.set_result(None)


async def test_disconnect_cancels_a_waiting_body():
    """The body's cleanup runs."""
    client, cleaned = Client(), []

    async def work() -> None:
        with CancelOnDisconnect():
            try:
                client.goes()
                await asyncio.Event().wait()
            finally:
                cleaned.append(True)

    with pytest.raises(RequestCancelled):
        await work()

    assert cleaned == [True]


async def test_task_is_usable_after_a_disconnect():
    """Its cancellation count is zero again."""
    client = Client()

    async def work() -> None:
        with CancelOnDisconnect():
            client.goes()
            await asyncio.Event().wait()

    with pytest.raises(RequestCancelled):
        await work()

    assert await asyncio.sleep(0, "still running") == "still running"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_body_does_not_start_after_a_disconnect():
    client, begun = Client(), []
    client.goes()

    with pytest.raises(RequestCancelled), CancelOnDisconnect():
        begun.append(True)

    assert begun == []


async def test_disconnect_after_the_body_has_no_effect():
    client = Client()

    with CancelOnDisconnect():
        await asyncio.sleep(0)
    client.goes()

    assert await asyncio.sleep(0, "still running") == "still running"


async def test_disconnect_pending_at_the_end_of_the_body_has_no_effect():
    """It does not cancel what comes after the body."""
    client = Client()

    with CancelOnDisconnect():
        client.goes()  # its callbacks run in the event loop's next iteration

    assert await asyncio.sleep(0, "still running") == "still running"


async def test_body_completes_if_the_server_reports_no_disconnects():
    current.set(RequestContext("req_1"))
    with CancelOnDisconnect():
        result = await asyncio.sleep(0, "done")

    assert result == "done"


async def test_other_cancellations_stay_cancelled_errors():
    Client()

    async def work() -> None:
        with CancelOnDisconnect():
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_exceptions_of_the_body_pass_unchanged():
    Client()
    with pytest.raises(ValueError, match="own"), CancelOnDisconnect():
        raise ValueError("own")


async def test_timeout_cancels_the_body():
    """The callback that counts timeouts runs once."""
    client = Client()
    told: list[str] = []
    client.transport.deadline = asyncio.get_running_loop().time() + 0.02, told.append

    async def work() -> None:
        with CancelOnDisconnect():
            await asyncio.Event().wait()

    with pytest.raises(RequestTimedOut):
        await work()

    client.goes()
    task = asyncio.current_task()
    assert task is not None
    assert (told, task.cancelling()) == (["total"], 0)


async def test_expired_deadline_ends_the_body_at_its_first_await():
    client = Client()
    client.transport.deadline = 0.0, lambda kind: None

    async def work() -> None:
        with CancelOnDisconnect():
            await asyncio.Event().wait()

    with pytest.raises(RequestTimedOut):
        await work()


async def test_deadline_after_the_body_has_no_effect(loop_clock):
    client = Client()
    told: list[str] = []
    client.transport.deadline = loop_clock() + 1000, told.append

    with CancelOnDisconnect():
        await asyncio.sleep(0)
    loop_clock.move_on(1001)
    await asyncio.sleep(0.01)

    assert told == []


class Stream(StreamedResponse):
    """Records whether its generation started."""

    begun = False

    async def pump(self, writer: StreamWriter) -> bytes:
        self.begun = True
        self.start()
        return b"end"


@pytest.mark.parametrize(("goes", "sent"), [(False, 2), (True, 0)])
async def test_stream_does_not_start_after_a_disconnect(goes, sent):
    """For example, if the client left while the server was reading a long prompt."""
    client, stream, messages = Client(), Stream(StreamLimits(writer=triton.StreamWriter)), []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message["type"])

    client.transport.sink = AsgiSink(send)
    if goes:
        client.goes()
    await stream({"type": "http"}, receive, send)
    await asyncio.sleep(0.01)

    assert (stream.begun, len(messages)) == (not goes, sent)


class Body:
    """Something large of a request."""


async def test_cancelled_request_is_freed_without_a_collection():
    """The exception's traceback does not refer to itself: audio and bodies have megabytes."""
    client, bodies = Client(), []

    async def work() -> None:
        body = Body()
        bodies.append(ref(body))
        with CancelOnDisconnect():
            client.goes()
            await asyncio.Event().wait()

    async def request() -> None:
        with contextlib.suppress(RequestCancelled):  # as the middleware for errors
            await work()

    gc.disable()
    try:
        await asyncio.create_task(request())
        await asyncio.sleep(0)  # the loop has the task until then
        assert bodies[0]() is None
    finally:
        gc.enable()
