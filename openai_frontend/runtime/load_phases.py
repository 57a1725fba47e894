"""The current phase of each loading model, as its engine reports it, also from the engine's own
processes: these find the path of a pipe in their environment.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping

_PIPE = "_OPENAI_FRONTEND_LOAD_PHASES"
_READ_BYTES = 64 * 1024  # the size of a pipe


class LoadPhases:
    """The phases by model. Thread-safe."""

    def __init__(self) -> None:
        self._phases: dict[str, str] = {}
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None

    def connect(self) -> None:
        """Let the processes that start from now on report phases."""
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[0], False)
        os.environ[_PIPE] = f"/proc/{os.getpid()}/fd/{self._pipe[1]}"

    @contextlib.contextmanager
    def loading(self, model: str) -> Iterator[None]:
        """Around a load: only loading models have a phase."""
        try:
            yield
        finally:
            with self._lock:
                self._phases.pop(model, None)

    def report(self, model: str, phase: str) -> None:
        """Replace the model's phase."""
        with self._lock:
            self._receive()  # earlier reports of its processes
            self._phases[model] = phase

    def current(self) -> Mapping[str, str]:
        """The phases of the models that load in process."""
        with self._lock:
            self._receive()
            return dict(self._phases)

    def _receive(self) -> None:
        if self._pipe is None:
            return
        with contextlib.suppress(BlockingIOError):  # the pipe is empty
            for line in os.read(self._pipe[0], _READ_BYTES).splitlines():
                model, phase = json.loads(line)
                if model in self._phases:
                    self._phases[model] = phase


PHASES = LoadPhases()  # of this process, as Triton has one core per process


def report_from_engine(model: str, phase: str) -> None:
    """Report a phase from a process of the model's engine. Never blocks or raises."""
    path = os.environ.get(_PIPE)
    if path is None:
        return
    line = json.dumps([model, phase]) + "\n"
    with contextlib.suppress(OSError):  # the gateway is on another machine, or its pipe is full
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, line.encode())
        finally:
            os.close(pipe)
