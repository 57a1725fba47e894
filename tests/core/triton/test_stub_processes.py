"""The instances of stub processes, and which are dead."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from openai_frontend.triton import server, stub_processes
from tests import mock_models
from tests.core.triton import python_models
from tests.core.triton.generation_inputs import count, generate

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts idle processes that look like an instance's stub."""
    started = []

    def start(instance: str) -> "subprocess.Popen[bytes]":
        arguments = ["/triton_python_backend_stub", "-c", "input()", instance, "/models"]
        process = subprocess.Popen(arguments, executable=sys.executable, stdin=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def dead(known: stub_processes.StubProcesses) -> set[str]:
    """The dead instances after two checks, as required."""
    known.dead()
    return known.dead()


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kills a process and leaves a zombie."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_dead_stub(start):
    """Only its instance is dead."""
    known = stub_processes.StubProcesses()
    first, _ = start("one_0"), start("other_0")
    known.refresh()
    assert known.newest().keys() == {"one_0", "other_0"}
    assert dead(known) == set()
    end(first)

    assert dead(known) == {"one_0"}


def test_reloaded_instance(start):
    """It is alive, even if the core has not removed its old process."""
    known = stub_processes.StubProcesses()
    first = start("one_0")
    known.refresh()
    end(first)
    second = start("one_0")

    known.refresh(changing=True)  # the core may still query the old one
    assert known.newest()["one_0"].pid == first.pid
    assert dead(known) == {"one_0"}
    known.refresh()
    assert known.newest()["one_0"].pid == second.pid
    assert dead(known) == set()


def test_reaped_stub(start):
    """Its instance is reported by the next refresh until another process serves it."""
    known = stub_processes.StubProcesses()
    first, _ = start("one_0"), start("other_0")
    known.refresh()
    first.kill()
    first.wait()
    assert (dead(known), known.lost) == (set(), True)
    for _ in range(2):
        known.refresh()
        assert (known.reaped(), dead(known), known.lost) == ({"one_0"}, set(), False)

    start("one_0")
    known.refresh()
    assert known.reaped() == set()


def test_stub_of_an_unloaded_model(start):
    """It is forgotten; other missing stubs are not."""
    known = stub_processes.StubProcesses()
    for process in (start("one_0"), start("other_0")):
        known.refresh()
        process.kill()
        process.wait()
    known.refresh()

    known.forget_reaped(except_for=lambda instance: instance == "one_0")
    known.refresh()

    assert known.reaped() == {"one_0"}


def test_abandoned_stub_is_reaped(start, monkeypatch):
    """Only once Triton had time to do so itself, and only the abandoned one."""
    known = stub_processes.StubProcesses()
    first, other = start("one_0"), start("other_0")
    known.refresh()
    end(other)
    known.abandon([known.newest()["one_0"]])
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    known.reap()
    assert known.newest().keys() == {"other_0"}
    assert psutil.Process(first.pid).status() == psutil.STATUS_ZOMBIE

    monkeypatch.setattr(stub_processes, "REAP_AFTER_S", 0)
    known.reap()

    assert not psutil.pid_exists(first.pid)
    assert psutil.Process(other.pid).status() == psutil.STATUS_ZOMBIE
    assert known.lost_instances() == {"one_0", "other_0"}


def test_lost_instances_are_limited(start, monkeypatch):
    """A stub that Triton has reaped does not count: Triton has removed its instance."""
    monkeypatch.setattr(stub_processes, "REAP_AFTER_S", 0)
    monkeypatch.setattr(stub_processes, "MAX_REMAINS", 1)
    known = stub_processes.StubProcesses()
    for removed in (True, False):
        process = start("one_0")
        known.refresh()
        known.abandon([known.newest()["one_0"]])
        if removed:
            process.wait()
        else:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert known.has_room()
        known.reap()

    assert not known.has_room()
    assert known.lost_instances() == {"one_0"}


@pytest.mark.parametrize(
    ("instance", "group", "whose"),
    [
        ("model_0", "model", True),  # of a config without groups
        ("model_0_1", "model_0", True),  # of a group with a count of two
        ("other_0", "model", False),
        ("model_0_0", "model_0_0", False),  # `model`'s, beside a model `model_0`
        ("model_x", "model", False),
    ],
)
def test_instance_names(instance, group, whose):
    """An instance is named after its group, with a number."""
    assert stub_processes.serves(instance, [{"name": "another"}, {"name": group}]) is whose


# While it is imported, the stub is stopped for longer than the second that Triton allows
STANDS_STILL = """
import os, signal, subprocess

subprocess.Popen(["/bin/sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
os.kill(os.getpid(), signal.SIGSTOP)

"""


@pytest.mark.slow
async def test_stub_that_triton_has_given_up(repository, start_server, monkeypatch, caplog):
    """It is killed, because Triton waits for its end; its model fails to load, and others serve."""
    monkeypatch.setattr(stub_processes, "GIVEN_UP_S", 0.5)
    monkeypatch.setattr(server, "_STUB_INTERVAL_S", 0.2)
    python_models.write(repository, "still", answer=STANDS_STILL + python_models.ECHO)
    mock_models.write(repository, "good")

    started = await start_server()

    [reason] = [entry.reason for entry in started.model_index() if entry.name == "still"]
    assert "Stub process 'still_0' is not healthy" in reason
    assert "instance still_0's process, which it has given up" in caplog.text
    assert await count(generate(started, 2, model="good")) == 2
