"""Why an engine's process failed: vLLM only logs it there, and says that it did to the gateway."""

import logging
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess

from openai_frontend.errors import describe_exception

# vLLM logs the exception that ends the process with this logger, before it announces the end.
_LOGGER = "vllm.v1.engine.core"
_LONGEST = 4096  # bytes; a pipe holds more

_here = threading.local()


class ProcessFailures:
    """The failures of the processes that one engine has started."""

    def __init__(self) -> None:
        self._readers: list[Connection] = []
        self._failure: str | None = None

    def add(self, reader: Connection) -> None:
        """Add a process by its pipe."""
        self._readers.append(reader)

    def first(self) -> str | None:
        """The first failure that was reported; None if there is none."""
        for reader in self._readers if self._failure is None else ():
            with suppress(EOFError, OSError):  # it has ended without a report
                if reader.poll():
                    self._failure = reader.recv_bytes().decode(errors="replace")
        return self._failure

    def describe(self, reason: str) -> str:
        """Add the first failure to the reason."""
        failure = self.first()
        return reason if failure is None else f"{reason}: {failure}"

    def close(self) -> None:
        """Read no more reports. The objects of an engine may outlive its end."""
        for reader in self._readers:
            reader.close()
        self._readers.clear()


@contextmanager
def collected() -> Iterator[ProcessFailures]:
    """Collect the failures of the processes that this thread starts meanwhile. The caller closes
    them, unless its block fails.
    """
    _here.failures = failures = ProcessFailures()
    with ExitStack() as on_failure:
        on_failure.callback(failures.close)
        try:
            yield failures
        finally:
            del _here.failures
        on_failure.pop_all()


class ReportingProcess(BaseProcess):
    """A process that reports the exception that ends vLLM's engine in it."""

    _report: Connection | None = None

    def start(self) -> None:
        """Start the process; the gateway keeps the reading end of its pipe."""
        failures: ProcessFailures | None = getattr(_here, "failures", None)
        if failures is None:
            super().start()
            return
        reader, self._report = multiprocessing.Pipe(duplex=False)
        try:
            super().start()
            failures.add(reader)
        finally:
            self._report.close()
            self._report = None

    def run(self) -> None:
        """Runs in the process."""
        if self._report is not None:
            # vLLM configures its loggers when it is imported, which removes handlers, not filters
            logging.getLogger(_LOGGER).addFilter(partial(_report_exception, self._report))
        super().run()


def _report_exception(report: Connection, record: logging.LogRecord) -> bool:
    """Send the first logged exception."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, Exception) and not report.closed:
        described = describe_exception(error).encode(errors="replace")[:_LONGEST]
        with suppress(OSError):  # the gateway has ended
            report.send_bytes(described)
        report.close()
    return True


class _SpawnProcess(ReportingProcess, SpawnProcess):
    pass


class ReportingSpawnContext(SpawnContext):
    """Spawns processes that report their failure."""

    Process = _SpawnProcess
