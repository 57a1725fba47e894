"""Stub processes that the backend calls unhealthy, and those that take their place."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator

import pytest

from openai_frontend.triton import error_codes, inprocess
from tests.unit.triton import puppet

INSTANCE = "puppet_0"
UNHEALTHY = f"Failed to process the request. Stub process '{INSTANCE}' is not healthy."

Start = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts idle processes."""
    started = []

    def start() -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def unknown(start: Start) -> "subprocess.Popen[bytes]":
    """A stub that is older than the core, and that no list of processes had."""
    return start()


@pytest.fixture
async def ask(unknown, start_server, monkeypatch):
    """Sends a request to a fresh core."""
    monkeypatch.setattr(inprocess, "RUNTIME", puppet.__name__)
    async with puppet.model(await start_server()) as asked:
        yield asked


async def report(core, running):
    """Passes on a list of processes, on a thread; returns the unhealthy stubs."""
    return await asyncio.to_thread(lambda: (core.set_stubs(running), core.unhealthy_stubs())[1])


@pytest.mark.parametrize("known", [True, False])
async def test_unknown_process_is_not_its_own_replacement(ask, start, unknown, known):
    """Whether the core knew another process of the instance or none, a stub that is older than the
    error is killed once it is known, and the instance stays unhealthy until it has a newer one.
    """
    request = await ask()
    if known:
        stale = start()
        stale.kill()
        stale.wait()
        assert await report(request._core, {INSTANCE: (stale.pid, ["puppet"])}) == {}
    request.execution.fail(error_codes.INTERNAL, UNHEALTHY)

    for _ in range(2):
        running = {INSTANCE: (unknown.pid, ["puppet"])}
        assert await report(request._core, running) == {INSTANCE: True}
    assert unknown.wait(30) == -9

    newer = start()
    assert await report(request._core, {INSTANCE: (newer.pid, ["puppet"])}) == {}
    assert newer.poll() is None


async def test_replacement_of_a_dead_process_is_kept(ask, start):
    """It began after the error, so it cannot mix up responses."""
    request = await ask()
    died = start()
    await report(request._core, {INSTANCE: (died.pid, ["puppet"])})
    died.kill()
    died.wait()
    request.execution.fail(error_codes.INTERNAL, UNHEALTHY)
    assert await report(request._core, {}) == {INSTANCE: False}
    newer = start()

    assert await report(request._core, {INSTANCE: (newer.pid, ["puppet"])}) == {}
    assert newer.poll() is None
