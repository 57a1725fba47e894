"""Round-robin over the answers of one model: each gets one token per round."""

import queue
import threading
import time
from typing import Protocol

CANCEL_CHECK_S = 0.1  # NVIDIA's models check as often by default


class Job(Protocol):
    """One request's work."""

    def advance(self) -> bool:
        """One step; True after the last one. Reports its own errors to its caller."""

    def is_cancelled(self) -> bool:
        """Whether the caller has left."""

    def cancel(self) -> None:
        """Ends it."""


class Scheduler:
    """One thread that works on all jobs."""

    def __init__(self) -> None:
        self._new: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._jobs: list[Job] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def add(self, job: Job) -> None:
        self._new.put(job)

    def stop(self) -> None:
        """Returns when the thread has ended; jobs in flight stay unfinished."""
        self._new.put(None)
        self._thread.join()

    def _run(self) -> None:
        looked = time.monotonic()
        while self._take():
            if time.monotonic() - looked > CANCEL_CHECK_S:
                self._drop_cancelled()
                looked = time.monotonic()
            self._jobs = [job for job in self._jobs if not job.advance()]

    def _take(self) -> bool:
        """Takes every new job; waits if there is no other work. False at the end."""
        while not self._jobs or not self._new.empty():
            job = self._new.get()
            if job is None:
                return False
            self._jobs.append(job)
        return True

    def _drop_cancelled(self) -> None:
        for job in [each for each in self._jobs if each.is_cancelled()]:
            job.cancel()
            self._jobs.remove(job)
