"""Triton's own log as records of ours: its core writes to a file, which is a pipe to here."""

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

# The core blocks where the pipe is full, so it is as large as a process may have it
_PIPE_BYTES = 1024 * 1024


class TritonLogPipe:
    """The pipe, and the thread that reads it. One for a process: the core has one log."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        with contextlib.suppress(OSError):  # where many pipes are open a small one has to do
            fcntl.fcntl(self._write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # Which lines are written is the core's own settings' to say
        logger.setLevel(logging.DEBUG)
        threading.Thread(target=self._run, name="triton-log", daemon=True).start()

    @property
    def path(self) -> Path:
        """For the core's setting of its log's file."""
        return Path(f"/proc/self/fd/{self._write}")

    def _run(self) -> None:
        with open(self._read, encoding="utf-8", errors="replace", newline="\n") as lines:
            level = logging.INFO
            for line in lines:
                level, text = _read(line.rstrip("\n"), level)
                if text:
                    logger.log(level, "%s", text)


def _read(line: str, level_before: int) -> tuple[int, str]:
    """Level and text; a line without a head goes on with the record before."""
    found = _HEAD.fullmatch(line)
    if found is None:
        return level_before, line
    return logging.getLevelNamesMapping()[_LEVELS[found["a"] or found["b"]]], found["text"]
