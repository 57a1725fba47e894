"""The gateway as users run it: the command, in its own process, on its own port."""

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType

import httpx
import psutil
import pytest

from tests import fork_server
from tests.fork_server import ForkedProcess
from tests.ports import free_port

ROOT = Path(__file__).parent.parent
COMMAND = Path(sys.executable).with_name("openai-frontend")
_LOG_CHARACTERS = 8000
# By the Python backend, because of stubs that had no processor for a second (docs/engine-health.md)
_BACKEND_ABORT, _STUB_KILLED = "boost::interprocess::lock_exception", ", which it has given up"
_RESTARTS = 2  # beside another load it aborted twice in a row, once in hundreds of runs
_ENVIRONMENT = fork_server.ENVIRONMENT


class GatewayProcess:
    """`openai-frontend serve` on a free port of 127.0.0.1, as a context manager. A string
    instead of a repository is MODEL; `port` is that of an ended process, to start it again.

    Its environment has this project's tests on the path, because engines may be among them.
    """

    def __init__(
        self,
        repository: Path | str,
        log: Path,
        *options: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        port: int | None = None,
    ) -> None:
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        _logs[self] = log
        model = repository if isinstance(repository, str) else f"--model-repository={repository}"
        self._command = [str(COMMAND), "serve", model, f"--port={self.port}", *options]
        self.environment = {**os.environ, **_ENVIRONMENT, **environment}
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes] | ForkedProcess:
        with self.log.open("w") as output:
            if fork_server.has_environment(self.environment):
                cwd = self.log.parent
                return ForkedProcess(self._command, output, cwd, self.environment)
            return subprocess.Popen(
                self._command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.log.parent,
                start_new_session=True,
                env=self.environment,
            )

    def __enter__(self) -> "GatewayProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, timeout_s: float = 600) -> None:
        """Returns when /health/ready succeeds; otherwise fails with the end of the log.

        Three engines that start at once take minutes on a busy machine. If Triton's Python backend
        aborts the process or gives up a stub while models load, it is started again.
        """
        deadline = time.monotonic() + timeout_s
        restarts = _RESTARTS
        while time.monotonic() < deadline:
            if _STUB_KILLED in self.output():
                self._process.kill()
                self._process.wait(60)
            if self._process.poll() is not None:
                output = self.output()
                if not restarts or not (_BACKEND_ABORT in output or _STUB_KILLED in output):
                    break
                restarts, self._process = restarts - 1, self._start()
            if self.ready(min(30, timeout_s)):
                return
            time.sleep(0.1)
        code = self._process.poll()
        end = f"in {timeout_s:g} s" if code is None else f"before it ended with {code}"
        log = self.output()[-_LOG_CHARACTERS:]
        raise AssertionError(f"the gateway did not get ready {end}; the end of its log:\n{log}")

    def ready(self, timeout_s: float = 30) -> bool:
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=timeout_s).status_code == 200
        except httpx.TransportError:
            return False

    def output(self) -> str:
        """Empty if the log is a device: /dev/full has no end."""
        return self.log.read_text() if self.log.is_file() else ""

    def wait_for_line(self, text: str, timeout_s: float = 120) -> str:
        """Returns the first line of the output that contains `text`: a thread writes the log,
        perhaps after the response.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for line in self.output().splitlines():
                if text in line:
                    return line
            time.sleep(0.02)
        raise AssertionError(f"{text!r} is in no line of:\n{self.output()}")

    def engine_processes(self) -> list[psutil.Process]:
        """vLLM's EngineCore processes."""
        children = psutil.Process(self.pid).children(recursive=True)
        return [child for child in children if "EngineCore" in child.name()]

    def interrupt_group(self) -> None:
        """Sends SIGINT to the gateway and its engines' processes, as Ctrl-C in a terminal does."""
        os.killpg(self.pid, signal.SIGINT)

    def send_signal(self, number: int) -> None:
        """Sends a signal that does not end it."""
        self._process.send_signal(number)

    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, timeout_s: float = 120) -> int:
        """Returns the exit code."""
        return self._process.wait(timeout_s)

    def stop(self, number: int = signal.SIGINT, timeout_s: float = 120) -> int:
        """Sends a signal and returns the exit code."""
        self._process.send_signal(number)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise


# Of the processes that a fixture or test still refers to
_logs: weakref.WeakKeyDictionary[GatewayProcess, Path] = weakref.WeakKeyDictionary()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the end of each gateway's log to the report of a failed test, with what it told no
    client.
    """
    report = yield
    if report.failed:
        for process, log in _logs.items():
            title = f"log of the gateway on port {process.port}"
            report.sections.append((title, log.read_text()[-_LOG_CHARACTERS:]))
    return report
