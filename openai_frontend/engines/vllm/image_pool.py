"""A bounded pool of processes that decode and preprocess images."""

import contextlib
import json
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
from typing import Any

from openai_frontend.engines.engine import EngineError
from openai_frontend.engines.vllm.image_worker import (
    ImageRequest,
    read_message,
    write_message,
)
from openai_frontend.triton import error_codes

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
        self._idle: deque[_Worker] = deque()
        self._lock = threading.Lock()  # of the control socket
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, model_config: Any) -> dict[str, Any]:
        """Start the process that workers are forked from; blocks until it has made the processor.

        Returns `target`, the ids of a placeholder, and `max_tokens` of an image. Raises
        RuntimeError.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
            self._process = subprocess.Popen(  # noqa: S603  this interpreter and our own module
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), str(self._memory_mib)],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        self._control = ours
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # type: ignore[union-attr]
            pickle.dump(model_config, pipe)
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
            control, self._control = self._control, None
            idle = [self._idle.pop() for _ in range(len(self._idle))]
        for worker in idle:
            worker.connection.close()
        if control is not None:
            control.close()  # the process exits, and its workers are killed with it
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _process_image(self, request: ImageRequest, text: str) -> ProcessedImage:
        worker = self._idle.pop() if self._idle else self._fork()
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

    def _release(self, worker: _Worker) -> None:
        with self._lock:
            if self._control is not None:
                self._idle.append(worker)
                return
        worker.connection.close()

    def _fork(self) -> _Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, self._lock:
            if self._control is None:
                raise EngineError(_CLOSED, error_codes.UNAVAILABLE)
            socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
            answer = self._control.recv(64)
        if not answer:
            raise EngineError("the image processor's process died", error_codes.UNAVAILABLE)
        return _Worker(int(answer), ours)

    def _kill(self, worker: _Worker) -> None:
        worker.connection.close()
        with self._lock, contextlib.suppress(OSError):
            if self._control is not None:
                self._control.send(f"kill {worker.process_id}".encode())
