"""Turns the log of Triton's core into our log records: the core writes into a pipe."""

import contextlib
import fcntl
import logging
import os
import re
import threading
from pathlib import Path

logger = logging.getLogger("triton")

# `W1121 23:10:11.123456 42 file.cc:12] "text"`, or the time in ISO 8601 and then the letter
_HEAD = re.compile(r'(?:(?P<a>[IWEFV])\d{4} |\S+ (?P<b>[IWEFV]) )[^\]]*\] "?(?P<text>.*?)"?')
_LEVELS = {"V": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}

# The core blocks on a full pipe, so the pipe is as large as allowed
_PIPE_BYTES = 1024 * 1024


class TritonLogPipe:
    """The pipe and its reader thread. One per process, as the core has one log."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        with contextlib.suppress(OSError):  # the user's limit for pipes is reached
            fcntl.fcntl(self._write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # The core's own settings decide which lines are logged
        logger.setLevel(logging.DEBUG)
        threading.Thread(target=self._run, name="triton-log", daemon=True).start()

    @property
    def path(self) -> Path:
        """For the core's option `log_file`."""
        return Path(f"/proc/self/fd/{self._write}")

    def _run(self) -> None:
        with open(self._read, encoding="utf-8", errors="replace", newline="\n") as lines:
            level = logging.INFO
            for line in lines:
                level, text = _read(line.rstrip("\n"), level)
                if text:
                    logger.log(level, "%s", text)


def _read(line: str, level_before: int) -> tuple[int, str]:
    """Level and text; a line without a head continues the previous record."""
    match = _HEAD.fullmatch(line)
    if match is None:
        return level_before, line
    return logging.getLevelNamesMapping()[_LEVELS[match["a"] or match["b"]]], match["text"]
