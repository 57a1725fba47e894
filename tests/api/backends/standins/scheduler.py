"""Answers on threads: one for each request."""

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


def start(job: Job) -> None:
    """Work on a job until it ends or its caller leaves."""
    threading.Thread(target=_run, args=(job,), daemon=True).start()


def _run(job: Job) -> None:
    looked = time.monotonic()
    while not job.advance():
        if time.monotonic() - looked > CANCEL_CHECK_S:
            if job.is_cancelled():
                job.cancel()
                return
            looked = time.monotonic()
