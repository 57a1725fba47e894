"""What the core logs while it starts: without its complaints about a missing GPU, and readable as a
reason.

The core starts even where it cannot serve, and tells why only in its log.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from openai_frontend.triton import _core, options

# Said where there is no GPU and nothing is wrong, and what only repeats the line before.
_HARMLESS = (
    "CudaDriverHelper",
    "pinned memory pool",
    "CUDA memory pool",
    "unable to create stream for ensemble",
    "failed to load all models",
)
_ERROR = re.compile(r'^(?:E\d{4} |.*? E ).*?\] "?(.*?)"?$')

_UNREADABLE = re.compile(r"Poll failed for model directory '(.*?)': (.*)")


class StartLog:
    """The lines that the core has logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @property
    def errors(self) -> list[str]:
        """The messages of its errors."""
        return [found[1] for line in self.lines if (found := _ERROR.match(line))]

    @property
    def unreadable_models(self) -> dict[str, str]:
        """Why the config of a model could not be read: the model index does not say."""
        found = [_UNREADABLE.match(line) for line in self.errors]
        return {match[1]: match[2] for match in found if match is not None}


@contextmanager
def capture(made: _core.ServerOptions, chosen: options.Options, folder: Path) -> Iterator[StartLog]:
    """Divert the core's log to a file of `folder` while it starts; then pass it on.

    The logging options act at once on the core's one logger, so they can be set again after the
    start.
    """
    log = StartLog()
    path = folder / "start.log"
    made.log_file(str(path))
    try:
        yield log
    finally:
        made.log_file(str(chosen.log_file or ""))
        written = path.read_text() if path.exists() else ""
        log.lines = [line for line in written.splitlines() if not _is_harmless(line)]
        _pass_on(log.lines, chosen.log_file)


def _is_harmless(line: str) -> bool:
    return not options.has_gpu() and any(words in line for words in _HARMLESS)


def _pass_on(lines: list[str], log_file: Path | None) -> None:
    if not lines:
        return
    if log_file is None:
        _write(lines, sys.stderr)
        return
    with log_file.open("a") as file:
        _write(lines, file)


def _write(lines: list[str], file: TextIO) -> None:
    file.write("\n".join(lines) + "\n")
