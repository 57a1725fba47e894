"""A bounded pool of processes that decode and preprocess images."""

import contextlib
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any, cast

from openai_frontend.engines.engine import EngineError
from openai_frontend.engines.vllm.image_worker import (
    ImageRequest,
    read_message,
    write_message,
)
from openai_frontend.triton import error_codes

logger = logging.getLogger(__name__)

TIMEOUT_S = 20.0  # per image
MEMORY_MIB = 2048  # per worker: an image of 25 million pixels takes up to 600
START_TIMEOUT_S = 300.0
_MODULE = "openai_frontend.engines.vllm.image_worker"
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # the process forks
_CLOSED = "the model is unloaded"


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """What the engine gets for an image."""

    token_ids: list[int]  # instead of the placeholder
    mask: list[bool] | None  # which of them stand for the image; None: all
    image_tokens: int
    frames: list[memoryview]  # the model's input, as vLLM's MsgpackEncoder writes it

    @property
    def nbytes(self) -> int:
        """Size in bytes of the frames."""
        return sum(len(frame) for frame in self.frames)


class _Worker:
    """A connection to a worker process. Not thread-safe."""

    def __init__(self, process_id: int, connection: socket.socket) -> None:
        self.process_id = process_id
        self.connection = connection
        self._deadline_s = 0.0

    def is_alive(self) -> bool:
        """Whether the worker has not closed its end. It sends nothing while it is idle."""
        try:
            self.connection.settimeout(0)
            return bool(self.connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def process(self, request: ImageRequest, text: bytes, timeout_s: float) -> ProcessedImage:
        """Raises ValueError if the image is refused, OSError or EOFError if the worker fails."""
        self._deadline_s = time.monotonic() + timeout_s
        self.connection.settimeout(timeout_s)
        write_message(self.connection, request, [text])
        outcome, frames = read_message(self)
        if "refused" in outcome:
            raise ValueError(str(outcome["refused"]))
        return ProcessedImage(outcome["token_ids"], outcome["mask"], outcome["embeds"], frames)

    def recv_into(self, data: memoryview) -> int:
        """As of a socket, with one deadline for the whole message. Raises TimeoutError."""
        self.connection.settimeout(max(1e-3, self._deadline_s - time.monotonic()))
        return self.connection.recv_into(data)


class ImagePool:
    """Up to `processes` images are processed at a time; others wait."""

    def __init__(
        self, *, processes: int, timeout_s: float = TIMEOUT_S, memory_mib: int = MEMORY_MIB
    ) -> None:
        """Limits per image: wall-clock time, and memory beside what the idle process has."""
        self.runs = 0  # of the model's processor
        self.timeout_s = timeout_s
        self._memory_mib = memory_mib
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="images")
        self._lock = threading.Lock()  # of all that follows
        self._idle: deque[_Worker] = deque()
        self._closed = False
        self._config = b""  # vLLM's ModelConfig, pickled
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, model_config: Any) -> dict[str, Any]:
        """Start the process that workers are forked from; blocks until it has made the processor.

        Returns `target`, the ids of a placeholder, and `max_tokens` of an image. Raises
        RuntimeError.
        """
        self._config = pickle.dumps(model_config)
        with self._lock:
            return self._launch()

    def _launch(self) -> dict[str, Any]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  this interpreter and our own module
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), str(self._memory_mib)],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        with contextlib.suppress(BrokenPipeError), cast("IO[bytes]", self._process.stdin) as pipe:
            pipe.write(self._config)
        ours.settimeout(START_TIMEOUT_S)
        facts: dict[str, Any] = json.loads(ours.recv(1 << 16) or b'{"error": "it died"}')
        if "error" in facts:
            raise RuntimeError(f"the image processor does not start: {facts['error']}")
        return facts

    def submit(self, request: ImageRequest, text: str) -> Future[ProcessedImage]:
        """Process an image, given as base64, on a worker.

        The future raises ValueError if that fails. It can be cancelled until a worker has it.
        """
        return self._threads.submit(self._process_image, request, text)

    def close(self) -> None:
        """Kill all processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().connection.close()
            self._end()

    def _process_image(self, request: ImageRequest, text: str) -> ProcessedImage:
        worker = self._idle_worker() or self._fork()
        self.runs += 1
        try:
            processed = worker.process(request, text.encode(), self.timeout_s)
        except TimeoutError:
            self._kill(worker)
            message = f"processing it takes more than {self.timeout_s:g} s"
            raise ValueError(message) from None
        except (EOFError, OSError):
            self._kill(worker)
            raise ValueError("processing it failed") from None
        except ValueError:
            self._release(worker)
            raise
        self._release(worker)
        return processed

    def _idle_worker(self) -> _Worker | None:
        """A living one, if there is one."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                worker = self._idle.pop()
            if worker.is_alive():
                return worker
            self._kill(worker)

    def _release(self, worker: _Worker) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(worker)
                return
        worker.connection.close()

    def _fork(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise EngineError(_CLOSED, error_codes.UNAVAILABLE)
            try:
                return self._forked()
            except (EOFError, OSError):
                logger.warning("the process that preprocesses images died; restarting")
                self._end()
                try:
                    self._launch()
                    return self._forked()
                except (EOFError, OSError, RuntimeError) as error:
                    logger.exception("the process that preprocesses images does not restart")
                    message = "images cannot be processed at the moment"
                    raise EngineError(message, error_codes.UNAVAILABLE) from error

    def _forked(self) -> _Worker:
        if self._control is None:
            raise EOFError("the process did not restart")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
            if not (answer := self._control.recv(64)):
                raise EOFError("the process closed its socket")
            on_failure.pop_all()
        return _Worker(int(answer), ours)

    def _end(self) -> None:
        """The process exits without its socket, and its workers die with it."""
        control, self._control = self._control, None
        if control is not None:
            control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _kill(self, worker: _Worker) -> None:
        worker.connection.close()
        with self._lock, contextlib.suppress(OSError):
            if self._control is not None:
                self._control.send(f"kill {worker.process_id}".encode())
