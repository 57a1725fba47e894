"""Captures the core's log during startup, filters GPU warnings and extracts errors.

The core starts even if it cannot serve; the reason is only in its log.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from openai_frontend.triton import _core, options
from openai_frontend.triton_interface import HARMLESS_WITHOUT_GPU, LOG_LINE, UNREADABLE_MODEL


class StartLog:
    """The lines that the core logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @property
    def errors(self) -> list[str]:
        """The messages of logged errors."""
        found = map(LOG_LINE.fullmatch, self.lines)
        return [each["text"] for each in found if each is not None and "E" in each.group("a", "b")]

    @property
    def unreadable_models(self) -> dict[str, str]:
        """Model -> why its config could not be read: the model index does not contain it."""
        found = [UNREADABLE_MODEL.match(line) for line in self.errors]
        return {match[1]: match[2] for match in found if match is not None}


@contextmanager
def capture(
    core_options: _core.ServerOptions, server_options: options.Options, folder: Path
) -> Iterator[StartLog]:
    """Redirect the core's log to a file in `folder` during startup, then forward it.

    The logging options act immediately on the core's only logger, so they can be reset after the
    start.
    """
    log = StartLog()
    path = folder / "start.log"
    core_options.log_file(str(path))
    try:
        yield log
    finally:
        core_options.log_file(str(server_options.log_file or ""))
        written = path.read_text(errors="replace") if path.exists() else ""
        log.lines = [line for line in written.splitlines() if not _is_harmless(line)]
        _pass_on(log.lines, server_options.log_file)


def _is_harmless(line: str) -> bool:
    return not options.has_gpu() and any(words in line for words in HARMLESS_WITHOUT_GPU)


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
