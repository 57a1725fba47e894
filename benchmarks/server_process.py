"""Servers as processes of their own, each on its own port and core; `with` ends them."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from benchmarks import process_stat
from tests.ports import free_port

_START_S = 120.0
_STOP_S = 30.0
_POLL_S = 0.005

ROOT = Path(__file__).parents[1]  # where `-m benchmarks` is found
MOST_STREAMS = 4096


class ServerFailed(Exception):
    """A server that ended or never answered; the message holds what it said."""


class ServerProcess:
    """`with ServerProcess(arguments, port, core):` a process that listens."""

    def __init__(
        self,
        arguments: Sequence[str],
        port: int,
        core: int | None,
        *,
        program: str = sys.executable,
    ) -> None:
        self.port = port
        self._arguments = [program, *arguments]
        self._core = core

    def __enter__(self) -> "ServerProcess":
        self._log = tempfile.TemporaryFile()
        self.started_s = time.perf_counter()
        self._process = self._start()
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        self.start_up_s = time.perf_counter() - self.started_s
        self.start_up_cpu_s = process_stat.cpu_s(self.pid)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The server's own process, not a shell's."""
        return self._process.pid

    def _start(self) -> subprocess.Popen[bytes]:
        ours = os.sched_getaffinity(0)
        process_stat.pin(self._core)  # a child has its parent's cores from its first instruction
        try:
            return subprocess.Popen(
                self._arguments,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
        finally:
            os.sched_setaffinity(0, ours)

    def _wait_until_ready(self) -> None:
        end_s = time.perf_counter() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None:
                raise ServerFailed(
                    f"the server ended with {self._process.returncode}:\n{self.log()}"
                )
            if time.perf_counter() > end_s:
                raise ServerFailed(f"the server was not ready in {_START_S:.0f} s:\n{self.log()}")
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        request = b"GET /health/ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(request)
                return connection.recv(64).startswith(b"HTTP/1.1 200")
        except OSError:
            return False

    def log(self) -> str:
        """What the server has said, its end."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-5000:]

    def stop(self) -> None:
        """The polite way, and then the other."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def gateway(
    repository: Path,
    core: int | None,
    launcher: Sequence[str] = ("-m", "openai_frontend.cli"),
    options: Sequence[str] = (),
) -> ServerProcess:
    """The real server, with its defaults but for the 1,000 idle streams beside others."""
    port = free_port()
    serve = ["serve", "--port", str(port), "--model-repository", str(repository)]
    serve += ["--max-concurrent-requests", str(MOST_STREAMS), *options]
    return ServerProcess([*launcher, *serve, "--graceful-shutdown-timeout-s", "1"], port, core)


def floor(core: int | None) -> ServerProcess:
    """The canary."""
    port = free_port()
    return ServerProcess(["-m", "benchmarks.floor", str(port)], port, core)


def c_floor(program: Path, core: int | None) -> ServerProcess:
    """The same in C, as `c_floor.build` made it."""
    port = free_port()
    return ServerProcess([str(port)], port, core, program=str(program))
