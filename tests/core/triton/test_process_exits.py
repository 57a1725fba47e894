"""Children whose end is noticed at once."""

import asyncio
import os
import subprocess
import sys

import pytest

from openai_frontend.triton.process_exits import ProcessExits
from tests.core.triton.waiting import until

WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def child():
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_end_of_a_child(child):
    """It is reported once, also while nobody has reaped it."""
    ends: list[bool] = []
    exits = ProcessExits(lambda: ends.append(True))
    before = open_descriptors()
    exits.watch([child.pid])
    exits.watch([child.pid])
    assert open_descriptors() == before + 1
    child.kill()
    await until(lambda: ends == [True])
    await asyncio.sleep(0)

    assert (ends, open_descriptors()) == ([True], before)


async def test_child_that_is_no_longer_watched(child):
    ends: list[bool] = []
    exits = ProcessExits(lambda: ends.append(True))
    before = open_descriptors()
    exits.watch([child.pid])
    exits.close()
    child.kill()
    child.wait()
    await asyncio.sleep(0.01)

    assert (ends, open_descriptors()) == ([], before)


async def test_processes_that_cannot_be_watched(child, monkeypatch):
    """One that is gone, and a kernel without process descriptors."""
    exits = ProcessExits(lambda: None)
    child.kill()
    child.wait()
    exits.watch([child.pid])

    def unsupported(pid: int) -> int:
        raise OSError("Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", unsupported)
    exits.watch([os.getpid()])
    assert exits._descriptors == {}
