"""Processes of vLLM models that are forked from one that has imported vLLM."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from openai_frontend.engines.vllm.processes import children as processes
from openai_frontend.triton import Server
from tests.vllm.conftest import needs_fork_server

pytestmark = [pytest.mark.engine, needs_fork_server]


def write_environment(file: Path) -> None:
    file.write_text(json.dumps(dict(os.environ)))


def environment_of_a_process(file: Path) -> dict[str, str]:
    process = processes._context().Process(target=write_environment, args=(file,))
    process.start()
    process.join(300)
    assert process.exitcode == 0
    found: dict[str, str] = json.loads(file.read_text())
    return found


@pytest.mark.asyncio(loop_scope="session")
async def test_engines_of_a_process_have_one_parent(server: Server) -> None:
    """It is a child of this process, which imports vLLM once for all of them."""
    children = psutil.Process().children(recursive=True)
    engines = [each for each in children if "EngineCore" in each.name()]

    parents = {each.ppid() for each in engines}

    assert len(engines) >= 2
    assert len(parents) == 1
    assert parents <= {each.pid for each in psutil.Process().children()}


def test_process_gets_the_environment_of_its_start(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the fork server, which began earlier: set, changed and deleted variables."""
    monkeypatch.setenv("OPENAI_FRONTEND_TEST", "1")
    first = environment_of_a_process(tmp_path / "first")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("OPENAI_FRONTEND_TEST")
    monkeypatch.delenv("PATH")

    second = environment_of_a_process(tmp_path / "second")

    assert first["OPENAI_FRONTEND_TEST"] == "1"
    assert second == dict(os.environ)


def describe(connection: socket.socket, *arguments: str) -> None:
    """Send what a helper process is."""
    ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    threads = psutil.Process().num_threads()
    found = arguments, os.getppid(), os.getsid(0) == os.getpid(), ignores, threads
    connection.sendall(json.dumps(found).encode())


def helper(*arguments: str) -> list[object]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = processes.launch(f"{__name__}:describe", theirs, arguments)
        with ours.makefile("rb") as file:
            found: list[object] = json.loads(file.read())
        process.wait()
    return found


@pytest.mark.asyncio(loop_scope="session")
async def test_helper_is_forked_beside_the_engines(server: Server) -> None:
    """In a session of its own, with one thread, so that it may fork."""
    children = psutil.Process().children(recursive=True)
    engine = next(each for each in children if "EngineCore" in each.name())

    assert helper("a", "b") == [["a", "b"], engine.ppid(), True, True, 1]


def test_gpus_start_their_processes_as_vllm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was forked after an import touched CUDA could not use it."""
    from vllm.v1.engine import utils
    from vllm.v1.executor.multiproc_executor import get_mp_context

    monkeypatch.setattr(utils, "get_mp_context", get_mp_context)  # an engine may have changed it
    monkeypatch.setattr(processes, "version", lambda _: "0.32.0")
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", pytest.fail)

    processes.prepare()
    processes.install()

    assert utils.get_mp_context().get_start_method() == get_mp_context().get_start_method()
    assert helper("a")[:4] == [["a"], os.getpid(), True, True]


def test_end_of_the_fork_server_frees_no_modules() -> None:
    """An extension that it has imported would report its types as leaked."""
    code = (
        "import ctypes, openai_frontend.engines.vllm.processes.fork_server\n"
        "ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p))"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
