"""Writes lines on a thread of its own: a pipe that nobody reads, a full disk, hold up no request.

Lines that find no room, or that cannot be written, are counted, and the log tells how many.
"""

import logging
import os
import queue
import select
import threading
import weakref
from collections.abc import Callable

MAX_LINES = 10_000  # that wait to be written
_FLUSH_S = 2.0  # that the process' end waits for them
_RETRY_S = 0.5  # after which a descriptor that takes nothing now is tried again
_BATCH = 64


class BackgroundWriter:
    """A bounded queue of lines and the thread that writes them to a descriptor."""

    def __init__(
        self,
        fd: int,
        *,
        notice: Callable[[int], str],
        max_lines: int = MAX_LINES,
    ) -> None:
        """`notice` makes the line that tells how many were lost."""
        self._fd = fd
        self._notice = notice
        self._max_lines = max_lines
        self.lost = 0  # lines, since the start
        self._told = 0  # of them
        self._cut = False  # the last line was written in part
        self._start()
        after_fork = weakref.WeakMethod(self._start)
        os.register_at_fork(after_in_child=lambda: (start := after_fork()) and start())

    def _start(self) -> None:
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._lock = threading.RLock()  # what interrupts a thread may log too
        thread = threading.Thread(target=self._run, args=(self._lines,), name="log", daemon=True)
        thread.start()

    def put(self, line: str) -> None:
        """Never blocks; from any thread, and from within itself."""
        if self._lines.qsize() >= self._max_lines:
            self._lose(1)
        else:
            self._lines.put(line)

    def flush(self, timeout_s: float = _FLUSH_S) -> bool:
        """Wait until what was put has been written or lost; False where the time ran out."""
        done = threading.Event()
        self._lines.put(done)
        return done.wait(timeout_s)

    def _run(self, lines: "queue.SimpleQueue[str | threading.Event]") -> None:
        while True:
            batch: list[str] = []
            done: threading.Event | None = None
            while len(batch) < _BATCH and done is None:
                each = lines.get()
                if isinstance(each, threading.Event):
                    done = each
                    break
                batch.append(each)
                if lines.empty():
                    break
            self._write_all(batch)
            if done is not None:
                done.set()

    def _write_all(self, batch: list[str]) -> None:
        lost = self.lost
        if lost > self._told and self._write(self._notice(lost - self._told)) == 0:
            self._told = lost
        if batch:
            self._lose(self._write("".join(batch)))

    def _write(self, text: str) -> int:
        """How many of the lines have not been written wholly."""
        encoded = text.encode(errors="backslashreplace")
        data = memoryview(b"\n" + encoded if self._cut else encoded)
        try:
            while data:
                data = data[self._some(data) :]
                self._cut = True
        except OSError:
            return bytes(data).count(b"\n")
        self._cut = False
        return 0

    def _some(self, data: memoryview) -> int:
        while True:
            try:
                return os.write(self._fd, data)
            except BlockingIOError:  # a descriptor that another process made non-blocking
                select.select([], [self._fd], [], _RETRY_S)

    def _lose(self, count: int) -> None:
        with self._lock:
            self.lost += count


class NonBlockingHandler(logging.Handler):
    """Makes each record a line where it is logged, for an exception holds all that it saw; another
    thread writes it.
    """

    def __init__(self, fd: int, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.writer = BackgroundWriter(fd, notice=self._lost_line)

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises."""
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001  the log's own edge: a bad record ends no request
            line = self.format(_unwritable(record, error))
        self.writer.put(line + "\n")

    def flush(self) -> None:
        """Waits a while for the thread."""
        self.writer.flush()

    def _lost_line(self, count: int) -> str:
        return self.format(_record(logging.WARNING, "%d lines of the log were lost", count)) + "\n"


def dropped_lines() -> int:
    """Of the process' log, since it was set up."""
    handlers = logging.getLogger().handlers
    return sum(each.writer.lost for each in handlers if isinstance(each, NonBlockingHandler))


def _record(level: int, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(__name__, level, __file__, 0, message, args, None)


def _unwritable(record: logging.LogRecord, error: Exception) -> logging.LogRecord:
    """Says where the record comes from, and nothing that it holds."""
    message = "a line of %s (%s:%d) could not be written: %s"
    where = record.name, record.filename, record.lineno
    return _record(logging.ERROR, message, *where, type(error).__name__)
