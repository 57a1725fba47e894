"""Compiles grammars in a separate process before the engine gets them."""

import contextlib
import itertools
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from openai_frontend.engines.engine import ConstraintError, EngineError
from openai_frontend.engines.vllm.grammars.preprocess import GrammarSpec
from openai_frontend.engines.vllm.processes import children as processes
from openai_frontend.errors import caught
from openai_frontend.runtime.helper_process import HelperProcess
from openai_frontend.triton import error_codes

logger = logging.getLogger(__name__)

CPU_S = 8  # per grammar: a schema of 900 objects with two properties each takes 4
WALL_S = 60  # a busy machine gives a compilation a share of a processor
MEMORY_MIB = 1024  # per grammar: that schema takes 150

_FUNCTION = "openai_frontend.engines.vllm.grammars.sandbox_worker:run"
_DIED = "the grammar sandbox process died"
_STARVED = "the machine is too busy to compile the constraint; retry later"


class SandboxLimitExceeded(ConstraintError):
    """Compilation took too much time or memory; a later attempt may succeed."""


class _SandboxProcess(NamedTuple):
    process: HelperProcess
    connection: socket.socket


class GrammarSandbox:
    """The sandbox process, restarted after it dies. Methods may block; a thread reads replies."""

    def __init__(
        self, *, cpu_s: int = CPU_S, wall_s: int = WALL_S, memory_mib: int = MEMORY_MIB
    ) -> None:
        """Limits per grammar: CPU seconds of one processor, wall-clock time, and memory."""
        self._limits = {"cpu_s": cpu_s, "wall_s": wall_s, "memory_mib": memory_mib}
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._pending: dict[int, Future[GrammarSpec]] = {}
        self._process: _SandboxProcess | None = None
        self._has_vocabulary = False  # the process has the model's vocabulary
        self._closed = False

    def start(self) -> None:
        """Start the process. If it has to import xgrammar, it is ready about 2 s later."""
        with self._lock:
            self._running_process()

    def submit(
        self, form: GrammarSpec, vocabulary: Callable[[], Mapping[str, Any]]
    ) -> Future[GrammarSpec]:
        """Return a future of the prepared grammar, set once it has compiled.

        `vocabulary` returns the model's `vocabulary`, serialized by xgrammar, and the numbers of
        its `special_tokens`. The future raises ConstraintError if the grammar
        is the reason, and EngineError if the machine is.
        """
        future: Future[GrammarSpec] = Future()
        future.set_running_or_notify_cancel()  # waiting requests cannot cancel it
        with self._lock:
            number = next(self._numbers)
            try:
                process = self._running_process()
                if not self._has_vocabulary:
                    self._send(process, {**_read_vocabulary(vocabulary), **self._limits})
                    self._has_vocabulary = True
                self._send(process, {"id": number, "kind": form.kind, "text": form.text})
            except OSError:
                raise EngineError(_DIED, error_codes.UNAVAILABLE) from None
            self._pending[number] = future  # the reader needs the lock, so no reply is earlier
        return future

    def close(self) -> None:
        """Kill the process and its forks."""
        with self._lock:
            self._closed = True
            running, self._process = self._process, None
        if running is not None:
            running.process.kill()
            running.process.wait()

    def _running_process(self) -> _SandboxProcess:
        if self._closed:
            raise EngineError("the model is unloaded", error_codes.UNAVAILABLE)
        if self._process is None:
            self._process, self._has_vocabulary = _start_process(), False
            threading.Thread(
                target=self._read, args=(self._process,), name="grammar sandbox", daemon=True
            ).start()
        return self._process

    @staticmethod
    def _send(running: _SandboxProcess, message: Any) -> None:
        running.connection.sendall(json.dumps(message).encode() + b"\n")

    def _read(self, running: _SandboxProcess) -> None:
        """Settle the futures until the process dies, or sends anything but a reply."""
        with (
            caught(_log_broken),
            contextlib.suppress(ConnectionError),
            running.connection.makefile("rb") as replies,
        ):
            for line in replies:
                self._settle(json.loads(line))
        with self._lock:
            pending, self._pending = self._pending, {}
            if self._process is running:
                self._process = None
            running.connection.close()
        for future in pending.values():
            future.set_exception(EngineError(_DIED, error_codes.UNAVAILABLE))
        running.process.kill()
        running.process.wait()

    def _settle(self, reply: dict[str, Any]) -> None:
        """Raises what reading a malformed reply raises; its future is then still pending."""
        number, outcome = reply["id"], _outcome(reply)
        with self._lock:
            future = self._pending.pop(number)
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _outcome(reply: dict[str, Any]) -> GrammarSpec | Exception:
    if "starved" in reply:
        return EngineError(_STARVED, error_codes.UNAVAILABLE)
    if "error" in reply:
        kind = SandboxLimitExceeded if reply.get("over_limit") else ConstraintError
        return kind(reply["error"])
    return GrammarSpec(reply["kind"], reply["text"])


def _log_broken(error: Exception) -> None:
    logger.error("the grammar sandbox sent a malformed reply; it is replaced", exc_info=error)


def _read_vocabulary(vocabulary: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    try:
        return vocabulary()
    except ValueError as error:  # which would blame the request
        raise EngineError(f"the model's vocabulary cannot be read: {error}") from error


def _start_process() -> _SandboxProcess:
    ours, theirs = socket.socketpair()
    with theirs:
        return _SandboxProcess(processes.launch(_FUNCTION, theirs, ()), ours)
