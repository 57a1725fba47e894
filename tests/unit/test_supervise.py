"""Supervised background tasks restart after a failure."""

import asyncio
import logging

import pytest

from openai_frontend import supervise as module
from openai_frontend.supervise import supervise


class Work:
    """Fails `failures` times, then waits forever."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.starts = 0
        self.waits = asyncio.Event()

    async def __call__(self) -> None:
        self.starts += 1
        if self.starts <= self.left:
            raise RuntimeError("can't start new thread")
        self.waits.set()
        await asyncio.Event().wait()


async def test_failed_task_restarts(monkeypatch, caplog):
    """Each failure is logged once."""
    monkeypatch.setattr(module, "RESTART_DELAY_S", 0)
    work = Work(failures=3)

    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(supervise("watch keys file", work))
        async with asyncio.timeout(5):
            await work.waits.wait()

    assert work.starts == 4
    assert caplog.text.count("background task 'watch keys file' failed; restarting in 0 s") == 3
    task.cancel()
    await asyncio.wait([task])


async def test_cancellation_ends_the_task():
    """A cancelled task is not restarted."""
    work = Work(failures=0)
    task = asyncio.create_task(supervise("watch keys file", work))
    await work.waits.wait()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.starts == 1
