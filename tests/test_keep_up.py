"""A task that nobody waits for outlasts what it fails with."""

import asyncio
import logging

import pytest

from openai_frontend import keep_up as module
from openai_frontend.keep_up import keep_up


class Work:
    """Fails so many times, then waits for ever."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.begun = 0
        self.waits = asyncio.Event()

    async def __call__(self) -> None:
        self.begun += 1
        if self.begun <= self.left:
            raise RuntimeError("can't start new thread")
        self.waits.set()
        await asyncio.Event().wait()


async def test_it_begins_again(monkeypatch, caplog):
    """As often as it fails, with a line of the log for each time."""
    monkeypatch.setattr(module, "AGAIN_S", 0)
    work = Work(failures=3)

    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(keep_up("the look at keys", work))
        async with asyncio.timeout(5):
            await work.waits.wait()

    assert work.begun == 4
    assert caplog.text.count("the look at keys failed, and begins again") == 3
    task.cancel()
    await asyncio.wait([task])


async def test_it_ends_with_its_canceller():
    """A stop is no failure."""
    work = Work(failures=0)
    task = asyncio.create_task(keep_up("the look at keys", work))
    await work.waits.wait()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.begun == 1
