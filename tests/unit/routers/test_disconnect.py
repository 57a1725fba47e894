import asyncio
from typing import Any

import pytest
from starlette.types import Message

from openai_frontend.errors import RequestCancelled, RequestTimedOut
from openai_frontend.routers.request import CancelOnDisconnect
from openai_frontend.routers.stream_writer import StreamWriter
from openai_frontend.routers.streaming import StreamedResponse, StreamLimits


class Client:
    """A connection whose client goes away when told to."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.scope: dict[str, Any] = {"type": "http", "state": {"connection_lost": self.lost}}

    def goes(self) -> None:
        self.lost.set_result(None)


async def test_body_ends():
    """A body that waits is cancelled when the client goes, and its cleaning up runs."""
    client, cleaned = Client(), []

    async def work() -> None:
        with CancelOnDisconnect(client.scope):
            try:
                client.goes()
                await asyncio.Event().wait()
            finally:
                cleaned.append(True)

    with pytest.raises(RequestCancelled):
        await work()

    assert cleaned == [True]


async def test_task_goes_on():
    """Afterwards the task can be used as if it had never been cancelled."""
    client = Client()

    async def work() -> None:
        with CancelOnDisconnect(client.scope):
            client.goes()
            await asyncio.Event().wait()

    with pytest.raises(RequestCancelled):
        await work()

    assert await asyncio.sleep(0, "still running") == "still running"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_client_that_has_gone():
    """For a client that went before, the body does not begin."""
    client, begun = Client(), []
    client.goes()

    with pytest.raises(RequestCancelled), CancelOnDisconnect(client.scope):
        begun.append(True)

    assert begun == []


async def test_client_stays():
    """While the client is there nothing happens, and nothing is left to be told afterwards."""
    client = Client()

    with CancelOnDisconnect(client.scope):
        await asyncio.sleep(0)
    client.goes()

    assert await asyncio.sleep(0, "still running") == "still running"


async def test_client_goes_as_the_body_ends():
    """A disconnect that is on its way when the body ends does not reach what comes after it."""
    client = Client()

    with CancelOnDisconnect(client.scope):
        client.goes()  # its callbacks run in the loop's next turn

    assert await asyncio.sleep(0, "still running") == "still running"


async def test_server_that_does_not_tell():
    """Where the server tells of no disconnect, the body runs to its end."""
    with CancelOnDisconnect({"type": "http", "state": {}}):
        result = await asyncio.sleep(0, "done")

    assert result == "done"


async def test_other_cancellation():
    """A cancellation that has nothing to do with the client stays one."""
    client = Client()

    async def work() -> None:
        with CancelOnDisconnect(client.scope):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_failure_of_the_body():
    """An exception of the body's own comes out as it is."""
    with pytest.raises(ValueError, match="own"), CancelOnDisconnect(Client().scope):
        raise ValueError("own")


async def test_time_that_is_over():
    """A body that takes too long is cancelled, and whoever counts is told once."""
    client = Client()
    told: list[str] = []
    client.scope["state"]["deadline"] = asyncio.get_running_loop().time() + 0.02, told.append

    async def work() -> None:
        with CancelOnDisconnect(client.scope):
            await asyncio.Event().wait()

    with pytest.raises(RequestTimedOut):
        await work()

    client.goes()
    task = asyncio.current_task()
    assert task is not None
    assert (told, task.cancelling()) == (["total"], 0)


async def test_time_that_was_over_before():
    """The body does not get past its first wait."""
    client = Client()
    client.scope["state"]["deadline"] = 0.0, lambda kind: None

    async def work() -> None:
        with CancelOnDisconnect(client.scope):
            await asyncio.Event().wait()

    with pytest.raises(RequestTimedOut):
        await work()


async def test_time_of_a_body_that_has_ended():
    """Afterwards the task is left alone."""
    client = Client()
    told: list[str] = []
    client.scope["state"]["deadline"] = asyncio.get_running_loop().time() + 0.02, told.append

    with CancelOnDisconnect(client.scope):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)

    assert told == []


class Stream(StreamedResponse):
    """Tells whether it was begun."""

    begun = False

    async def pump(self, writer: StreamWriter) -> bytes:
        self.begun = True
        self.start(writer)
        return b"end"


@pytest.mark.parametrize(("goes", "sent"), [(False, 2), (True, 0)])
async def test_a_stream_whose_client_has_gone(goes, sent):
    """As when its prompt was long to be read: nothing is begun that nobody waits for."""
    client, stream, messages = Client(), Stream(StreamLimits()), []
    client.scope["state"]["request_id"] = "req_1"

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message["type"])

    if goes:
        client.goes()
    await stream(client.scope, receive, send)
    await asyncio.sleep(0.01)

    assert (stream.begun, len(messages)) == (not goes, sent)
