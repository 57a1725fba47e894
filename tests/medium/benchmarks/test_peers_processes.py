import os
import signal
import subprocess
import sys
import time

import psutil

from benchmarks.peers import processes
from benchmarks.peers.processes import ENGINE, FRONTEND, SUPERVISOR

ENGINE_CORE = {11: "VLLM::EngineCore"}
WORKER = {12: "VLLM::Worker"}
TRACKER = {13: "python -c from multiprocessing.resource_tracker import main"}


def test_python_server_is_the_frontend():
    """Its engine's processes are not, wherever they are in the tree."""

    root = {10: "python -m openai_frontend.cli serve --model-repository=/vllm-rs"}
    found = processes.roles(root | ENGINE_CORE | WORKER | TRACKER)

    assert found == {FRONTEND: [10, 13], ENGINE: [11, 12], SUPERVISOR: []}


def test_frontend_of_several_processes_counts_them_all():
    """Every process that is not an engine counts."""

    root = {10: "python -m openai_frontend.cli serve"}
    found = processes.roles(root | ENGINE_CORE | {14: "python http worker"})

    assert found[FRONTEND] == [10, 14]


def test_rust_frontend_has_a_supervisor():
    """The Python process that started it is not the frontend, although its command names it."""

    root = {10: "python vllm serve model"}
    rust = {14: "/somewhere/vllm-rs frontend --listen-fd 3"}

    found = processes.roles(root | ENGINE_CORE | rust | TRACKER)
    assert found == {FRONTEND: [14], ENGINE: [11], SUPERVISOR: [10, 13]}


def _wait_for_line(process: subprocess.Popen[str]) -> int:
    return int(process.stdout.readline())


def test_tree_has_all_descendants_of_its_root():
    """The root comes first, and grandchildren are included."""

    child = "import time; time.sleep(60)"
    parent = (
        "import subprocess, sys;"
        f"c = subprocess.Popen([sys.executable, '-c', {child!r}]);"
        "print(c.pid, flush=True); c.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True
    ) as root:
        try:
            pid = _wait_for_line(root)
            found = [each.pid for each in processes.tree(root.pid)]
            named = processes.names(processes.tree(root.pid))
            below = {each.pid for each in processes.tree(os.getpid())}
        finally:
            processes.kill_left(processes.tree(root.pid))

    assert found == list(named) == [root.pid, pid]
    assert named[pid].endswith(child)
    assert {root.pid, pid} <= below
    assert root.returncode == -signal.SIGKILL
    assert processes.tree(root.pid) == []


def test_paused_processes_stop_and_continue():
    """They use no CPU while paused."""

    spin = "print(1, flush=True)\nwhile True: pass"
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            _wait_for_line(process)
            spinning = psutil.Process(process.pid)
            with processes.paused([spinning]):
                _wait_for_state(process.pid, psutil.STATUS_STOPPED)
                used = spinning.cpu_times()
                time.sleep(0.1)
                used_later = spinning.cpu_times()
            _wait_for_state(process.pid, psutil.STATUS_RUNNING)
            continued = spinning.is_running()
        finally:
            process.kill()

    assert used_later == used
    assert continued


def _wait_for_state(pid: int, state: str) -> None:
    """A signal takes a moment to arrive."""
    deadline = time.monotonic() + 60
    while (found := psutil.Process(pid).status()) != state:
        assert time.monotonic() < deadline, found
        time.sleep(0.005)
