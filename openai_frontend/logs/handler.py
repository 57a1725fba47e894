"""A logging handler that writes on its own thread: a blocked pipe or a full disk delays no request.

Lines that do not fit into the buffer or cannot be written are dropped and counted in the log.
"""

import logging
import os
import queue
import select
import threading
import weakref
from collections.abc import Callable

MAX_LINES = 10_000  # buffered
_FLUSH_S = 2.0  # at shutdown
_RETRY_S = 0.5  # for a non-blocking descriptor that is full
_BATCH = 64


class BackgroundWriter:
    """A bounded queue of lines, and the thread that writes them to a file descriptor."""

    def __init__(
        self,
        fd: int,
        *,
        notice: Callable[[int], str],
        max_lines: int = MAX_LINES,
    ) -> None:
        """`notice` formats the line that reports the number of dropped lines."""
        self._fd = fd
        self._notice = notice
        self._max_lines = max_lines
        self.dropped = 0  # lines, since the start
        self._reported = 0  # of them
        self._cut = False  # the last line was written partially
        self._start()
        after_fork = weakref.WeakMethod(self._start)
        os.register_at_fork(after_in_child=lambda: (start := after_fork()) and start())

    def _start(self) -> None:
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._lock = threading.RLock()  # a signal handler may log too
        thread = threading.Thread(target=self._run, args=(self._lines,), name="log", daemon=True)
        thread.start()

    def put(self, line: str) -> None:
        """Never blocks. Thread-safe and reentrant."""
        if self._lines.qsize() >= self._max_lines:
            self._drop(1)
        else:
            self._lines.put(line)

    def flush(self, timeout_s: float = _FLUSH_S) -> bool:
        """Waits until all lines have been written or dropped; False on timeout."""
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
        dropped = self.dropped
        if dropped > self._reported and self._write(self._notice(dropped - self._reported)) == 0:
            self._reported = dropped
        if batch:
            self._drop(self._write("".join(batch)))

    def _write(self, text: str) -> int:
        """Returns the number of lines that were not written completely."""
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
            except BlockingIOError:  # another process made it non-blocking
                select.select([], [self._fd], [], _RETRY_S)

    def _drop(self, count: int) -> None:
        with self._lock:
            self.dropped += count


class NonBlockingHandler(logging.Handler):
    """Formats records where they are logged, because an exception keeps its frames alive; another
    thread writes the lines.
    """

    def __init__(self, fd: int, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.writer = BackgroundWriter(fd, notice=self._dropped_notice)

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises."""
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001  a bad record must not fail a request
            line = self.format(_unwritable(record, error))
        self.writer.put(line + "\n")

    def flush(self) -> None:
        self.writer.flush()

    def _dropped_notice(self, count: int) -> str:
        return self.format(_record(logging.WARNING, "dropped %d log lines", count)) + "\n"


def dropped_lines() -> int:
    """Lines that the process' log has dropped since it was set up."""
    handlers = logging.getLogger().handlers
    return sum(each.writer.dropped for each in handlers if isinstance(each, NonBlockingHandler))


def _record(level: int, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(__name__, level, __file__, 0, message, args, None)


def _unwritable(record: logging.LogRecord, error: Exception) -> logging.LogRecord:
    """Reports the record's source location without its content."""
    message = "cannot format a log record of %s (%s:%d): %s"
    where = record.name, record.filename, record.lineno
    return _record(logging.ERROR, message, *where, type(error).__name__)
