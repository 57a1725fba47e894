"""Starts `openai-frontend` from a process that has imported what a gateway imports: a second of
CPU time less for each of the many gateways of the tests. Apart from the imports, such a gateway
does what the command does. Each worker of the tests has one such process. Gateways with variables
of their own are started by the command.
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
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

_ROOT = str(Path(__file__).parent.parent)
# Not with `-m`, which would leave the folder of the tests on the path of each gateway
_PROGRAM = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); from tests import fork_server; del sys.path[0];"
    " fork_server.main()"
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
_MAX_REQUEST_BYTES = 1 << 20
_STOP_S = 60.0
_FORK_S = 300.0  # the imports take minutes on a busy machine
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
# Before any test. Libraries and the dynamic linker read variables only once.
_AT_START = {**os.environ, **ENVIRONMENT}
_SET_BY_TESTS_IMPORTS = ("PYTEST_", "KMP_", "TORCHINDUCTOR_", "VLLM_")


def has_environment(wanted: Mapping[str, str]) -> bool:
    """Whether the variables are those of the process that forks."""
    return not differences(wanted)


def differences(wanted: Mapping[str, str]) -> set[str]:
    """The names of the variables that the process that forks lacks, or has with other values."""
    different = {name for name, _ in wanted.items() ^ _AT_START.items()}
    return {name for name in different if not name.startswith(_SET_BY_TESTS_IMPORTS)}


class ForkedProcess:
    """What the tests use of subprocess.Popen, for a process that another process has started."""

    def __init__(
        self, command: Sequence[str], output: IO[str], cwd: Path, environment: Mapping[str, str]
    ) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self._status, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        request = pickle.dumps((list(command), str(cwd), dict(environment)))
        assert len(request) <= _MAX_REQUEST_BYTES
        with theirs:
            socket.send_fds(_server()[0], [request], [output.fileno(), theirs.fileno()])
        self._status.settimeout(_FORK_S)
        try:
            self.pid = int(self._status.recv(64))
        except (TimeoutError, ValueError) as error:  # a closed connection has no number
            self._status.close()
            raise RuntimeError(f"No process was forked in {_FORK_S:g} s: {command}") from error

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
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process, and a connection to it; it ends when this end is closed, with the tests."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-u", "-P", "-c", _PROGRAM, str(theirs.fileno())],
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


def main() -> None:
    """Runs in that process, and in each gateway."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in _IMPORTED:
        importlib.import_module(name)
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
    _become(output, *pickle.loads(request))  # noqa: S301  from the test's own process


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


def _become(output: int, command: list[str], cwd: str, environment: dict[str, str]) -> None:
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    from openai_frontend.cli import run

    run()
