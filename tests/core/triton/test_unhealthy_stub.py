"""Stub processes that the backend calls unhealthy, and those that take their place."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from openai_frontend.runtime.triton_interface import (
    FULL_STUB,
    IN_ENSEMBLE,
    LOCKED_STUB,
    UNHEALTHY_STUB,
)
from openai_frontend.triton import error_codes, inprocess
from tests.core.triton import puppet

INSTANCE, OTHER = "puppet_0", "other_0"
UNHEALTHY = UNHEALTHY_STUB.format(instance=INSTANCE)
UNHEALTHY_OTHER = UNHEALTHY_STUB.format(instance=OTHER)
ENSEMBLES = IN_ENSEMBLE.format(ensemble="outer") + IN_ENSEMBLE.format(ensemble="inner")
# Whole, as the backend and the core write them
WHOLE = [UNHEALTHY, ENSEMBLES + UNHEALTHY, LOCKED_STUB, FULL_STUB, ENSEMBLES + LOCKED_STUB]
CALLED = f"TritonModelException: {UNHEALTHY_OTHER}\n\nAt:\n  model.py(1): execute\n"
PARTIAL = [
    "the database is not healthy",
    "is not healthy.",
    UNHEALTHY.removesuffix("."),
    UNHEALTHY.upper(),
    f"cannot parse {LOCKED_STUB}",
    f"in ensemble '{LOCKED_STUB}",
    UNHEALTHY_STUB.format(instance=""),
    UNHEALTHY_STUB.format(instance="puppet"),
    UNHEALTHY_STUB.format(instance="puppet_00"),
    UNHEALTHY_STUB.format(instance="ghost_0"),
    "",
]
# Like a stub's health thread; /bin/cat never runs
TICKS = ["/bin/sh", "-c", "while :; do sleep 0.05; done"]

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts idle processes."""
    started = []

    def start(*command: str) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(command or ["/bin/cat"], stdin=subprocess.PIPE))
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


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


async def answer(ask) -> bool:
    """Whether a request gets its response."""
    request = await ask()
    request.send("text")
    [response] = request.stream._native.take()
    return response.error is None


async def test_text_alone_changes_nothing(ask, start):
    """Whatever an error says, a stub that runs is not killed, and later responses arrive."""
    request, stubs = await ask(), [start(), start()]
    running = {INSTANCE: (stubs[0].pid, ["puppet"]), OTHER: (stubs[1].pid, ["other"])}
    await report(request._core, running)
    for message in [*WHOLE, *PARTIAL, CALLED, UNHEALTHY_OTHER]:
        request = await ask()
        request.execution.fail(error_codes.INTERNAL, message)
        [response] = request.stream._native.take()
        assert response.error == (error_codes.INTERNAL, message)

    assert request._core.unhealthy_stubs() == {}
    assert await answer(ask)
    assert [stub.poll() for stub in stubs] == [None, None]


async def test_a_stopped_stub_is_not_recognized_by_other_texts(ask, start):
    """The backend's text must be whole, and name the instance."""
    request, stub = await ask(), start()
    await report(request._core, {INSTANCE: (stub.pid, ["puppet"])})
    stop(stub)
    for message in PARTIAL:
        (await ask()).execution.fail(error_codes.INTERNAL, message)
        assert request._core.unhealthy_stubs() == {}, message


@pytest.mark.parametrize("message", WHOLE)
async def test_a_stopped_stub_is_killed(ask, start, message):
    """Its request fails as unavailable, and responses of its models are discarded."""
    request, other = await ask(), await ask()
    stub = start()
    await report(request._core, {INSTANCE: (stub.pid, ["puppet"]), OTHER: (start().pid, ["other"])})
    stop(stub)
    request.execution.fail(error_codes.INTERNAL, message)
    other.send("perhaps another request's")
    [failed], [discarded] = request.stream._native.take(), other.stream._native.take()

    assert request._core.unhealthy_stubs() == {INSTANCE: True}
    assert stub.wait(30) == -signal.SIGKILL
    assert failed.error == (error_codes.UNAVAILABLE, message)
    assert discarded.error[0] == error_codes.UNAVAILABLE


@pytest.mark.parametrize("message", [CALLED, UNHEALTHY_OTHER])
@pytest.mark.parametrize("in_stub", [True, False])
async def test_a_stopped_stub_that_another_one_calls_is_killed(ask, start, message, in_stub):
    """Only a model in a stub can call others; responses of the caller are not discarded."""
    request, stub = await ask(), start()
    running = {INSTANCE: (start().pid, ["puppet"])} if in_stub else {}
    await report(request._core, {OTHER: (stub.pid, ["other"]), **running})
    stop(stub)
    request.execution.fail(error_codes.INTERNAL, message)

    assert request._core.unhealthy_stubs() == ({OTHER: True} if in_stub else {})
    assert await answer(ask)


async def fails_after_a_second(ask, stub, *, stands_still):
    """Whether the stub is called unhealthy after a request that failed with the backend's text."""
    await report((await ask())._core, {INSTANCE: (stub.pid, ["puppet"])})
    request = await ask()  # earlier ones do not concern the process
    if stands_still:
        stop(stub)
    await asyncio.sleep(1)  # the backend's own time limit
    stub.send_signal(signal.SIGCONT)
    request.execution.fail(error_codes.INTERNAL, UNHEALTHY)
    return request._core.unhealthy_stubs() == {INSTANCE: True}


async def test_a_stub_that_stood_still_is_killed(ask, start):
    """Also if it runs again when the backend reports it."""
    stub = start(*TICKS)

    assert await fails_after_a_second(ask, stub, stands_still=True)
    assert stub.wait(30) == -signal.SIGKILL


async def test_a_slow_answer_with_the_text_changes_nothing(ask, start):
    """A model can wait for a second and send the backend's text while its process runs. A busy
    machine may make the process really stand still: then it is tried again.
    """
    for _ in range(5):
        killed = await fails_after_a_second(ask, start(*TICKS), stands_still=False)
        if not killed:
            break
    assert not killed


async def test_unknown_process_is_not_its_own_replacement(ask, start, unknown):
    """A stub that is older than the error is killed once it is known, and the instance stays
    unhealthy until it has a newer one.
    """
    request, stale = await ask(), start()
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


async def test_process_of_a_reload_is_kept(ask, start):
    """It was starting while the old process was stopped, which is the one that the error means."""
    request, stopped, newer = await ask(), start(), start()
    await report(request._core, {INSTANCE: (stopped.pid, ["puppet"])})
    stop(stopped)
    request.execution.fail(error_codes.INTERNAL, UNHEALTHY)
    assert stopped.wait(30) == -signal.SIGKILL

    assert await report(request._core, {INSTANCE: (newer.pid, ["puppet"])}) == {}
    assert newer.poll() is None
    assert await answer(ask)


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
