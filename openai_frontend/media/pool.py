"""A bounded pool of processes for work on media from clients, with limits on time and memory."""

import contextlib
import json
import logging
import secrets
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

from openai_frontend.media.fork_server import (
    Frames,
    MalformedMessage,
    PoolUnavailable,
    Refused,
    Reply,
    read_message,
    write_message,
)
from openai_frontend.runtime import helper_process
from openai_frontend.runtime.helper_process import HelperProcess, Launch

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 300.0
_REASON_CHARACTERS = 1000  # of why media is refused
_MIB = 1 << 20
_UNAVAILABLE = "media cannot be processed at the moment"

# The ends of a worker that no media causes: with its parent, or by a signal that no crash sends.
# The kernel sends SIGKILL if the machine, or the container, lacks the memory that the limit allows.
_KILLED = (None, -signal.SIGKILL, -signal.SIGTERM)

# Gets a task and its reply. Raises what indexing a malformed reply raises.
CheckReply = Callable[[Any, Reply], None]
_MALFORMED = (MalformedMessage, ValueError, TypeError, LookupError, ArithmeticError)

_FUNCTION = "openai_frontend.media.fork_server:run"


class _PoolWorker:
    """A connection to a worker process. Not thread-safe."""

    def __init__(self, process_id: int, connection: socket.socket, parent: socket.socket) -> None:
        """`parent`: the control socket of the process that forked it."""
        self.process_id = process_id
        self.parent = parent
        self.connection = connection
        self._deadline_s = 0.0

    def is_idle(self) -> bool:
        """Whether the worker has not closed its end. One that sends without a task is not idle:
        what it sends must not become the reply to another request.
        """
        try:
            self.connection.settimeout(0)
            self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def run(self, header: Any, frames: Frames, timeout_s: float, most_bytes: int) -> Reply:
        """Raises Refused if the media is refused, OSError, EOFError or MalformedMessage if the
        worker fails. `most_bytes`: of its reply.
        """
        self._deadline_s = time.monotonic() + timeout_s
        self.connection.settimeout(timeout_s)
        number = secrets.randbits(64)
        write_message(self.connection, number, header, frames)
        replied, outcome, reply_frames = read_message(self, most_bytes)
        if replied != number or not isinstance(outcome, dict):
            raise MalformedMessage("not the reply to its task")
        if "refused" in outcome:
            raise Refused(_reason(outcome["refused"]))
        return outcome, reply_frames

    def recv_into(self, data: memoryview) -> int:
        """Like a socket's method, with one deadline for the whole message. Raises TimeoutError."""
        self.connection.settimeout(max(1e-3, self._deadline_s - time.monotonic()))
        return self.connection.recv_into(data)


def _reason(reason: Any) -> str:
    """Raises MalformedMessage unless it can be a sentence for the client."""
    if not (isinstance(reason, str) and len(reason) <= _REASON_CHARACTERS and reason.isprintable()):
        raise MalformedMessage("not a reason")
    return reason


def _accept(_task: Any, _reply: Reply) -> None:
    """The default check of replies."""


class WorkerPool:
    """Runs up to `processes` tasks at a time; others wait.

    The process of `module`, which has `prepare` (see `fork_server.run`), starts with the first
    task, or by `start`.
    """

    def __init__(  # noqa: PLR0913  the limits of a task
        self,
        module: str,
        *,
        processes: int,
        timeout_s: float,
        memory_mib: int,
        data: bytes = b"",
        launch: Launch = helper_process.launch,
        check: CheckReply = _accept,
    ) -> None:
        """Limits per task: wall-clock time, and memory beside what the idle process has, which is
        also the limit of a reply. `data` is for `prepare`.
        """
        self._check = check
        self.runs = 0  # tasks begun
        self.timeout_s = timeout_s
        self._module = module
        self._memory_mib = memory_mib
        self._data = data
        self._start_process = launch
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="media")
        self._lock = threading.Lock()  # of all that follows
        self._idle: deque[_PoolWorker] = deque()
        self._closed = False
        self._control: socket.socket | None = None
        self._process: HelperProcess | None = None

    def start(self) -> Any:
        """Start the process; blocks until it is ready. Returns its facts. Raises RuntimeError."""
        with self._lock:
            return self._launch()

    def submit(self, header: Any, frames: Frames) -> "Future[Reply]":
        """Run a task, given as JSON and frames.

        The future raises ValueError if the media is refused or the task fails, and PoolUnavailable.
        It can be cancelled until a worker has it.
        """
        return self._threads.submit(self._run, header, frames)

    def close(self) -> None:
        """Kill all processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().connection.close()
            self._end()

    def _launch(self) -> Any:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        arguments = self._module, self._memory_mib, self._data
        with theirs:
            self._process = self._start_process(_FUNCTION, theirs, arguments)
        ours.settimeout(START_TIMEOUT_S)
        facts: Any = json.loads(ours.recv(1 << 16) or b'{"error": "it died"}')
        if "error" in facts:
            self._end()
            raise RuntimeError(f"the media process does not start: {facts['error']}")
        return facts

    def _run(self, header: Any, frames: Frames) -> Reply:
        """A worker is used again only after a complete reply that follows the protocol."""
        worker = self._idle_worker() or self._fork()
        self.runs += 1
        try:
            reply = self._reply(worker, header, frames)
        except Refused:
            self._release(worker)
            raise
        except (EOFError, OSError) as error:
            if self._kill(worker) in _KILLED:  # its end is not this task's fault
                raise PoolUnavailable(_UNAVAILABLE) from error
            raise ValueError("processing it failed") from None
        except BaseException:
            self._kill(worker)
            raise
        self._release(worker)
        return reply

    def _reply(self, worker: _PoolWorker, header: Any, frames: Frames) -> Reply:
        """Raises Refused for the media, ValueError with a message of our own for the worker, and
        EOFError or OSError if the worker ended.
        """
        try:
            reply = worker.run(header, frames, self.timeout_s, self._memory_mib * _MIB)
            self._check(header, reply)
        except Refused:
            raise
        except TimeoutError:
            message = f"processing it takes more than {self.timeout_s:g} s"
            raise ValueError(message) from None
        except _MALFORMED as error:
            logger.error(
                "a worker of %s sent a malformed reply (%s); it is replaced",
                self._module,
                type(error).__name__,
            )
            raise ValueError("processing it failed") from None
        return reply

    def _idle_worker(self) -> _PoolWorker | None:
        """None if there is none."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                worker = self._idle.pop()
            if worker.is_idle():
                return worker
            self._kill(worker)

    def _release(self, worker: _PoolWorker) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(worker)
                return
        worker.connection.close()

    def _fork(self) -> _PoolWorker:
        with self._lock:
            if self._closed:
                raise PoolUnavailable("the pool is closed")
            try:
                if self._control is not None:
                    return self._forked(self._control)
            except (EOFError, OSError):
                logger.warning("the process %s died; restarting", self._module)
                self._end()
            try:
                self._launch()
                return self._forked(cast(socket.socket, self._control))
            except (EOFError, OSError, RuntimeError) as error:
                logger.exception("the process %s does not start", self._module)
                self._end()
                raise PoolUnavailable(_UNAVAILABLE) from error

    @staticmethod
    def _forked(control: socket.socket) -> _PoolWorker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            socket.send_fds(control, [b"fork"], [theirs.fileno()])
            if not (process_id := control.recv(64)):
                raise EOFError("the process closed its socket")
            on_failure.pop_all()
        return _PoolWorker(int(process_id), ours, control)

    def _end(self) -> None:
        """The process exits without its socket, and its workers die with it."""
        control, self._control = self._control, None
        if control is not None:
            control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _kill(self, worker: _PoolWorker) -> int | None:
        """Return its exit code, of an earlier end if it has ended; None if its parent has too."""
        worker.connection.close()
        with self._lock, contextlib.suppress(OSError):
            # To another process, the id may be that of another worker
            if self._control is worker.parent:
                worker.parent.send(f"kill {worker.process_id}".encode())
                if exit_code := worker.parent.recv(64):
                    return int(exit_code)
        return None
