import os
import signal
import subprocess
import sys
import time

from benchmarks.peers import processes
from benchmarks.peers.processes import ENGINE, FRONTEND, SUPERVISOR, Process

ENGINE_CORE = Process(11, 10, "VLLM::EngineCore")
WORKER = Process(12, 11, "VLLM::Worker")
TRACKER = Process(13, 10, "python -c from multiprocessing.resource_tracker import main")


def test_python_server_is_the_frontend():
    """Its engine's processes are not, wherever they are in the tree."""

    root = Process(10, 1, "python -m openai_frontend.cli serve --model-repository=/vllm-rs")
    found = processes.roles([root, ENGINE_CORE, WORKER, TRACKER])

    assert found == {FRONTEND: [10, 13], ENGINE: [11, 12], SUPERVISOR: []}


def test_frontend_of_several_processes_counts_them_all():
    """Every process that is not an engine counts."""

    root = Process(10, 1, "python -m openai_frontend.cli serve")
    found = processes.roles([root, ENGINE_CORE, Process(14, 10, "python http worker")])

    assert found[FRONTEND] == [10, 14]


def test_rust_frontend_has_a_supervisor():
    """The Python process that started it is not the frontend, although its command names it."""

    root = Process(10, 1, "python vllm serve model")
    rust = Process(14, 10, "/somewhere/vllm-rs frontend --listen-fd 3")

    found = processes.roles([root, ENGINE_CORE, rust, TRACKER])
    assert found == {FRONTEND: [14], ENGINE: [11], SUPERVISOR: [10, 13]}


def test_parent_is_parsed_after_a_name_with_brackets():
    """A process's name may contain spaces and brackets."""

    assert processes.parse_parent("4242 (a) b (c)) S 17 4242 4242 0 -1") == 17


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
            found = processes.tree(root.pid)
            below = {each.pid for each in processes.tree(os.getpid())}
        finally:
            processes.kill_left(processes.tree(root.pid))

    assert [(each.pid, each.parent) for each in found] == [(root.pid, os.getpid()), (pid, root.pid)]
    assert {root.pid, pid} <= below
    assert root.returncode == -signal.SIGKILL


def test_cpu_time_is_summed_by_role():
    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass
    pid = os.getpid()
    found = processes.cpu_s({FRONTEND: [pid], ENGINE: [pid, pid], SUPERVISOR: []})

    assert found[FRONTEND] > 0.03
    assert found[ENGINE] >= 2 * found[FRONTEND]
    assert found[SUPERVISOR] == 0


def test_paused_processes_stop_and_continue():
    """They use no CPU while paused."""

    spin = "print(1, flush=True)\nwhile True: pass"
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            _wait_for_line(process)
            with processes.paused([process.pid]):
                assert _state(process.pid) == "T"
            assert _state(process.pid) == "R"
        finally:
            process.kill()


def _state(pid: int) -> str:
    """The state once it has settled: a signal takes a moment to arrive."""
    time.sleep(0.05)
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]
