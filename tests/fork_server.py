"""Starts `openai-frontend` from a process that has imported what a gateway imports: a second of
CPU time less for each of the many gateways of the tests. Apart from the imports, such a gateway
does what the command does. Each worker of the tests has one such process. Gateways with variables
of their own are started by the command.

Another such process has imported vLLM too: 15 s less for each gateway that starts an engine, of
which the fork server of the gateway's engines saves 9 s.
"""

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

_ROOT = str(Path(__file__).parent.parent)
# Not with `-m`, which would leave the folder of the tests on the path of each gateway
_PROGRAM = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); from tests import fork_server; del sys.path[0];"
    " fork_server.main(with_vllm={})"
)
# What a gateway with a model that has a tokenizer has imported once it is ready
_IMPORTED = (
    "openai_frontend.cli.command",
    "openai_frontend.cli.serve",
    "openai_frontend.app",
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_tokenizers",
    "uvicorn.loops.uvloop",
)
# What the gateway and the fork server of its engines import for vLLM
_IMPORTED_FOR_VLLM = (
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "openai_frontend.engines.vllm.engine",
    "openai_frontend.engines.vllm.media.worker",
    "openai_frontend.engines.vllm.grammars.sandbox_worker",
    "openai_frontend.engines.vllm.processes.scheduler",
    "openai_frontend.engines.vllm.processes.worker",
)
_MAX_REQUEST_BYTES = 1 << 20
_STOP_S = 60.0
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
# Before any test. Libraries and the dynamic linker read variables only once.
_AT_START = {**os.environ, **ENVIRONMENT}
_SET_BY_TESTS_IMPORTS = ("PYTEST_", "KMP_", "TORCHINDUCTOR_", "VLLM_")


def has_environment(wanted: Mapping[str, str]) -> bool:
    """Whether the variables are those of the process that forks."""
    different = {name for name, _ in wanted.items() ^ _AT_START.items()}
    return all(name.startswith(_SET_BY_TESTS_IMPORTS) for name in different)


class ForkedProcess:
    """What the tests use of subprocess.Popen, for a process that another process has started."""

    def __init__(
        self,
        command: Sequence[str],
        output: IO[str],
        cwd: Path,
        environment: Mapping[str, str],
        *,
        with_vllm: bool,
    ) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self._status, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        request = pickle.dumps((list(command), str(cwd), dict(environment)))
        assert len(request) <= _MAX_REQUEST_BYTES
        with theirs:
            socket.send_fds(_server(with_vllm)[0], [request], [output.fileno(), theirs.fileno()])
        self.pid = int(self._status.recv(64))

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired, BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = int(self._status.recv(64))
            except TimeoutError:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _server(with_vllm: bool) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process, and a connection to it; it ends when this end is closed, with the tests."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-u", "-P", "-c", _PROGRAM.format(with_vllm), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=_AT_START,
            start_new_session=True,
        )
    atexit.register(_end, ours, process)
    return ours, process


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.wait(60)


def main(*, with_vllm: bool) -> None:
    """Runs in that process, and in each gateway."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in _IMPORTED:
        importlib.import_module(name)
    if with_vllm:
        _import_vllm()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait below
    while True:
        request, descriptors, *_ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 2)
        if not request:
            return
        output, status = descriptors
        if not os.fork():
            break
        os.close(output)
        os.close(status)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # One process waits for the gateway, and tells its exit code.
    if gateway := os.fork():
        os.close(output)
        os.write(status, b"%d" % gateway)
        if not _ends_before_the_tests(gateway, status):
            _stop(gateway)
            os._exit(1)
        os.write(status, b"%d" % os.waitstatus_to_exitcode(os.waitpid(gateway, 0)[1]))
        os._exit(0)
    os.close(status)
    command, cwd, environment = pickle.loads(request)  # noqa: S301  from the test's own process
    _take_over(output, cwd)
    if with_vllm:
        _fork_the_fork_server()
    _replace_environment(environment)
    sys.argv = command
    from openai_frontend.cli import run

    run()


def _import_vllm() -> None:
    from setproctitle import getproctitle

    from openai_frontend.engines.vllm import arguments

    getproctitle()  # finds the memory for titles, which it cannot where variables were replaced
    before = len(os.listdir("/proc/self/task"))  # OpenBLAS has threads, and survives a fork
    arguments.set_environment()  # each gateway gets other variables
    for name in _IMPORTED_FOR_VLLM:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task")) - before
    assert not threads, f"the import of vLLM started {threads} threads: forks may not be safe"


def _ends_before_the_tests(gateway: int, status: int) -> bool:
    """Wait for the end of either: the tests may be killed."""
    ended = os.pidfd_open(gateway)
    readable, _, _ = select.select([ended, status], [], [])
    os.close(ended)
    return ended in readable


def _stop(gateway: int) -> None:
    """Nobody else does, and it may hold gigabytes."""
    ended = os.pidfd_open(gateway)
    os.kill(gateway, signal.SIGTERM)
    if not select.select([ended], [], [], _STOP_S)[0]:
        os.kill(gateway, signal.SIGKILL)


def _take_over(output: int, cwd: str) -> None:
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(cwd)


def _replace_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _fork_the_fork_server() -> None:
    """Fork the process that becomes the gateway's fork server when the gateway starts one, before
    the gateway has threads. It has no imports left to do.
    """
    from multiprocessing import util

    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    waiting = os.fork()
    if not waiting:
        ours.close()
        _become_the_fork_server(theirs)
    theirs.close()
    spawn: Callable[..., int] = util.spawnv_passfds

    def spawn_or_wake(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
        """Instead of the function by which `multiprocessing` starts its own processes."""
        code = arguments[-1]
        if ours.fileno() < 0 or not code.startswith("from multiprocessing.forkserver import main"):
            return spawn(path, arguments, descriptors)
        with ours:
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            request = pickle.dumps((code, list(descriptors), dict(os.environ), blocked))
            socket.send_fds(ours, [request], list(descriptors))
        return waiting

    vars(util)["spawnv_passfds"] = spawn_or_wake


def _become_the_fork_server(gateway: socket.socket) -> NoReturn:
    # Ctrl-C and a closed terminal are for the gateway, which ends this
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    request, received, *_ = socket.recv_fds(gateway, _MAX_REQUEST_BYTES, 2)
    gateway.close()
    if not request:
        os._exit(0)
    code, sent, environment, blocked = pickle.loads(request)  # noqa: S301  from the gateway
    _replace_environment(environment)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)  # as a started process inherits it
    called = "main(%d, %d, "
    assert called % tuple(sent) in code, code
    exec(code.replace(called % tuple(sent), called % tuple(received), 1), {})  # noqa: S102  as -c does
    os._exit(0)
