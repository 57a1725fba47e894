import asyncio

import pytest
from starlette.types import Message

from openai_frontend.errors import RequestCancelled
from openai_frontend.routers.disconnect import CancelOnDisconnect


class Client:
    """A connection whose client goes away when told to."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_body_ends():
    """A body that waits is cancelled when the client goes, and its cleaning up runs."""
    client, cleaned = Client(), []

    async def work() -> None:
        async with CancelOnDisconnect(client.receive):
            try:
                client.gone.set()
                await asyncio.Event().wait()
            finally:
                cleaned.append(True)

    with pytest.raises(RequestCancelled):
        await work()

    assert cleaned == [True]


async def test_task_goes_on():
    """Afterwards the task can be used as if it had never been cancelled."""
    client = Client()
    client.gone.set()

    with pytest.raises(RequestCancelled):
        async with CancelOnDisconnect(client.receive):
            await asyncio.Event().wait()

    assert await asyncio.sleep(0, "still running") == "still running"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_client_stays():
    """While the client is there, nothing happens, and the watcher ends with the body."""
    before = asyncio.all_tasks()

    async with CancelOnDisconnect(Client().receive):
        await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert before == asyncio.all_tasks()


async def test_other_cancellation():
    """A cancellation that has nothing to do with the client stays one."""

    async def work() -> None:
        async with CancelOnDisconnect(Client().receive):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_failure_of_the_body():
    """An exception of the body's own comes out as it is."""
    with pytest.raises(ValueError, match="own"):
        async with CancelOnDisconnect(Client().receive):
            raise ValueError("own")


async def test_rest_of_a_body_is_no_disconnect():
    """Only the disconnect counts; a message that brings more of the body does not."""
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async with CancelOnDisconnect(receive):
        await asyncio.sleep(0.01)

    assert messages == []
