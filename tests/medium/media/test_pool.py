"""Processes for media: what harms one is an error of its task alone."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from openai_frontend.media.fork_server import PoolUnavailable
from openai_frontend.media.pool import WorkerPool
from tests.medium.media import hostile

MODULE = "tests.medium.media.hostile"


def check(_, reply) -> None:
    if type(reply[0]["process"]) is not int:
        raise TypeError("process")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(MODULE, processes=2, timeout_s=60, memory_mib=256, data=b"read", check=check)
    yield made
    made.close()


def test_module_that_its_package_imports_starts_without_a_warning(tmp_path, monkeypatch, capfd):
    """As vLLM's worker, which the engine beside it imports."""
    package = tmp_path / "worker_package"
    package.mkdir()
    (package / "__init__.py").write_text("from worker_package import work")
    (package / "work.py").write_text("def prepare(given):\n    return {'ready': True}, None")
    monkeypatch.syspath_prepend(tmp_path)
    made = WorkerPool("worker_package.work", processes=1, timeout_s=60, memory_mib=256)
    facts = made.start()
    made.close()
    assert facts == {"ready": True}
    assert capfd.readouterr().err == ""


def test_first_task_starts_the_process_and_workers_are_kept(pool):
    frames = [b"one", b"", bytes(300_000)]
    first, returned = pool.submit("echo", frames).result()
    assert [bytes(each) for each in returned] == frames
    assert first["process"] != os.getpid()
    assert pool.submit("echo", []).result()[0] == first


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("refuse", "it is not wanted"),
        ("crash", "processing it failed"),
        ("raise", "processing it failed"),
        ("allocate", "processing it needs more than 256 MiB"),
        ("file", "processing it failed"),
        ("socket", "processing it failed"),
    ],
)
def test_harmful_task_fails_alone(pool, task, message):
    """With a message of our own; the next task has a worker again."""
    with pytest.raises(ValueError, match=message) as failed:
        pool.submit(task, []).result()
    assert "secret" not in str(failed.value)
    assert pool.submit("echo", [b"x"]).result()[1] == [b"x"]


@pytest.mark.parametrize("task", hostile.REPLIES)
def test_worker_with_a_malformed_reply_is_killed(pool, task, caplog):
    """The client gets our own message, and no other request the worker or the rest of its reply."""
    pool.submit("echo", []).result()
    before = pool._idle[-1].process_id

    with pytest.raises(ValueError, match=r"^processing it failed$"):
        pool.submit(task, []).result()

    assert pool.submit("echo", [b"x"]).result()[1] == [b"x"]
    assert before not in {each.process_id for each in pool._idle}
    assert "a worker of tests.medium.media.hostile sent a malformed reply" in caplog.text
    with pool._forked(pool._control).connection:  # whatever was sent before has been done
        assert not psutil.pid_exists(before)


def test_second_reply_reaches_no_request(pool):
    """The worker sends the first one before the pool may read, so both are there together."""
    assert pool.submit("two replies", []).result()[0] == {"process": 1}
    worker = pool._idle[-1]
    worker.connection.settimeout(60)
    worker.connection.recv(1, socket.MSG_PEEK)

    assert pool.submit("echo", []).result()[0]["process"] not in (2, worker.process_id)


def test_task_that_hangs_is_killed():
    pool = WorkerPool(MODULE, processes=1, timeout_s=0.3, memory_mib=256)
    try:
        assert pool.start() == {"given": ""}
        with pytest.raises(ValueError, match=r"takes more than 0\.3 s"):
            pool.submit("hang", []).result()
        pool.timeout_s = 60
        assert pool.submit("echo", [b"x"]).result()[1] == [b"x"]
    finally:
        pool.close()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM], ids=str)
@pytest.mark.parametrize("killed", ["process", "worker"])
def test_task_whose_worker_is_killed_is_not_at_fault(killed, signal_number):
    """The process takes its workers with it; the next task has others."""
    pool = WorkerPool(MODULE, processes=1, timeout_s=60, memory_mib=256)
    try:
        pool.start()
        task = pool.submit("hang", [])
        while not (workers := psutil.Process(pool._process.pid).children()):
            time.sleep(0.01)
        process = psutil.Process(pool._process.pid) if killed == "process" else workers[0]
        process.send_signal(signal_number)
        with pytest.raises(PoolUnavailable):
            task.result(60)
        assert pool.submit("echo", [b"x"]).result()[1] == [b"x"]
    finally:
        pool.close()


def test_worker_of_an_earlier_process_is_not_killed_in_the_next(pool):
    """Its id may be that of another worker by now."""
    pool.submit("echo", []).result()
    earlier = pool._idle[-1]
    os.kill(pool._process.pid, signal.SIGKILL)
    pool._process.wait()
    while earlier.is_idle():
        time.sleep(0.01)
    current = pool.submit("echo", []).result()[0]
    assert current["process"] != earlier.process_id

    earlier.process_id = current["process"]
    pool._kill(earlier)

    with pool._forked(pool._control).connection:  # whatever was sent before has been done
        assert pool.submit("echo", []).result()[0] == current


def test_process_survives_the_id_of_no_worker(pool):
    """Of a process that has ended, or of one that is not its child."""
    before = pool.submit("echo", []).result()[0]
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    pool._control.send(f"kill {ended.pid}".encode())
    assert pool._control.recv(64) == b"0"

    with pool._forked(pool._control).connection:
        assert pool.submit("echo", []).result()[0] == before


def test_closed_pool_takes_no_tasks():
    pool = WorkerPool(MODULE, processes=1, timeout_s=60, memory_mib=256)
    task = pool.submit("echo", [])
    task.result()
    pool.close()
    with pytest.raises(RuntimeError):
        pool.submit("echo", [])


def test_process_that_does_not_start_makes_the_pool_unavailable():
    pool = WorkerPool("tests.medium.media.missing", processes=1, timeout_s=60, memory_mib=256)
    with pytest.raises(PoolUnavailable):
        pool.submit("echo", []).result()
    pool.close()
