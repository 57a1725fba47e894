"""Supervised background tasks restart after a failure; daemon threads hold up nothing."""

import asyncio
import logging
import threading

import pytest

from openai_frontend.runtime import background_tasks as module
from openai_frontend.runtime.background_tasks import (
    ThreadUnavailable,
    in_daemon_thread,
    next_tick,
    supervise,
)


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
        async with asyncio.timeout(30):
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


@pytest.mark.parametrize(
    ("now_s", "due_s"),
    [(100.0, 100.25), (100.1, 100.25), (100.2, 100.5), (100.2499, 100.5), (100.125, 100.25)],
)
async def test_next_tick_is_a_multiple_and_not_too_near(monkeypatch, now_s, due_s):
    """A timer that fires early does not make a check run twice."""
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now_s)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await next_tick(0.25)
    monkeypatch.undo()

    assert slept == [pytest.approx(due_s - now_s)]


async def test_checks_share_their_wake_ups():
    """Those that began at other times too."""
    loop, ticks = asyncio.get_running_loop(), []

    async def check(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        for _ in range(3):
            await next_tick(0.1)
            ticks.append(loop.time() // 0.1 if loop.time() % 0.1 < 0.09 else loop.time() // 0.1 + 1)

    await asyncio.gather(check(0), check(0.03), check(0.04))

    assert len(ticks) == 9
    assert len({*ticks}) <= 5


async def test_daemon_thread_returns_or_raises():
    """Its function runs in a thread that does not hold up the exit."""
    seen: list[threading.Thread] = []

    def divide(by: int) -> float:
        seen.append(threading.current_thread())
        return 1 / by

    assert await in_daemon_thread("division", lambda: divide(2)) == 0.5
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread("division", lambda: divide(0))
    assert {(thread.name, thread.daemon) for thread in seen} == {("division", True)}


async def test_thread_of_a_cancelled_caller_ends(monkeypatch):
    """And its result, which nobody awaits, is no error."""
    go_on, threads = threading.Event(), []
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)

    def wait() -> None:
        threads.append(threading.current_thread())
        go_on.wait()

    caller = asyncio.create_task(in_daemon_thread("wait", wait))
    while not threads:  # noqa: ASYNC110  the thread gives no event to this loop
        await asyncio.sleep(0.001)
    caller.cancel()
    await asyncio.wait([caller])
    go_on.set()
    await asyncio.to_thread(threads[0].join, 60)

    assert caller.cancelled()
    assert not threads[0].is_alive()
    assert not failures


async def test_no_thread_is_an_os_error(monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    with pytest.raises(ThreadUnavailable, match="can't start new thread"):
        await in_daemon_thread("none", lambda: None)
