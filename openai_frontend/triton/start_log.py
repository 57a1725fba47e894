"""Changes the core's log; captures it during startup, filters GPU warnings, extracts errors.

The core starts even if it cannot serve; the reason is only in its log.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from openai_frontend.config.triton_options import TRITON_OPTIONS, arguments, core_log
from openai_frontend.runtime.triton_interface import (
    HARMLESS_WITHOUT_GPU,
    LOG_LINE,
    MODEL_LOAD_ENDED,
    MODEL_LOADS,
    STUB_STARTS,
    UNREADABLE_MODEL,
)
from openai_frontend.triton import _core, options

_FILE = "start.log"
_STARTING_STUB = "starting its Python stub"


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


def load_phases(folder: Path) -> dict[str, str]:
    """The models that load now, while `capture` runs with this folder, and what each does; empty
    if the core does not tell.
    """
    try:
        lines = (folder / _FILE).read_text(errors="replace").splitlines()
    except FileNotFoundError:  # the core has not begun
        return {}
    phases: dict[str, str] = {}
    for head in filter(None, map(LOG_LINE.fullmatch, lines)):
        if (model := MODEL_LOADS.fullmatch(head["text"])) is not None:
            phases[model[1]] = ""
        elif (model := MODEL_LOAD_ENDED.fullmatch(head["text"])) is not None:
            phases.pop(model[1], None)
        elif (model := STUB_STARTS.fullmatch(head[0])) is not None and model[1] in phases:
            phases[model[1]] = _STARTING_STUB
    return phases


@contextmanager
def capture(
    core_options: _core.ServerOptions, server_options: options.Options, folder: Path
) -> Iterator[StartLog]:
    """Redirect the core's log to a file in `folder` during startup, then forward it.

    The logging options act immediately on the core's only logger, so they can be reset after the
    start. Until then it logs information too, for `load_phases`.
    """
    log = StartLog()
    core = core_log(server_options.triton_option)
    path = folder / _FILE
    core_options.log_file(str(path))
    # Verbose lines have the level of information too, so they could not be separated
    for_phases = not core.info and not core.verbose
    core_options.log_info(core.info or for_phases)
    try:
        yield log
    finally:
        core_options.log_info(core.info)
        core_options.log_file(str(core.file or ""))
        written = path.read_text(errors="replace") if path.exists() else ""
        path.unlink(missing_ok=True)  # no model loads any more
        lines = written.splitlines()
        if for_phases:
            lines = _without_information(lines)
        log.lines = [line for line in lines if not _is_harmless(line)]
        _pass_on(log.lines, core.file)


# Key of Triton's logging extension -> option
_OPTIONS = {
    "log_info": "log-info",
    "log_warning": "log-warning",
    "log_error": "log-error",
    "log_verbose_level": "log-verbose",
    "log_format": "log-format",
}


def set_log(name: str, value: str | int | bool) -> None:
    """Change a setting of the only logger: every options object sets the same one."""
    option = _OPTIONS[name]
    setter = getattr(_core.ServerOptions(), TRITON_OPTIONS[option].setter)
    setter(*arguments(option, str(value)))


def _without_information(lines: list[str]) -> list[str]:
    """Drop the records of this level, with the lines that continue them."""
    kept, keeps = [], True
    for line in lines:
        if (head := LOG_LINE.fullmatch(line)) is not None:
            keeps = "I" not in head.group("a", "b")
        if keeps:
            kept.append(line)
    return kept


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
