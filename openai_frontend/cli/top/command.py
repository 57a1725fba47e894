"""Runs `top`: asks, compares, shows, and waits."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from openai_frontend.cli.top import screen
from openai_frontend.cli.top.figures import Figures, figures
from openai_frontend.cli.top.options import KEY_VARIABLE
from openai_frontend.cli.top.reading import Reading, read
from openai_frontend.cli.top.source import Place, Unreachable, place

_WINDOW_S = 10.0  # what rates and quantiles are of: one second alone has too few requests
_ONCE_S = 1.0  # between the two looks of --once

_OPEN = "\x1b[?1049h\x1b[?25l"  # another screen, without a cursor
_CLOSE = "\x1b[?25h\x1b[?1049l"
_HOME, _TO_LINE_END, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"


def run(given: Mapping[str, Any]) -> str | None:
    """Does what the command line says; returns what was wrong, on one line, or None."""
    try:
        asked = place(
            given["url"],
            key=_key(given["key_file"]),
            unix_socket=given["unix_socket"],
            ca=given["ca"],
            certificate=given["certificate"],
        )
    except OSError as error:
        files = [str(given[each]) for each in ("ca", "certificate") if given[each] is not None]
        return f"top: {error.filename or ', '.join(files)}: {error.strerror}"  # ssl names none
    except ValueError as error:
        return f"top: {error}"
    try:
        if given["once"]:
            return _once(asked, as_json=given["as_json"])
        _live(asked, given["interval"], as_json=given["as_json"])
    except (KeyboardInterrupt, BrokenPipeError):  # how one leaves it
        pass
    return None


def _key(file: Path | None) -> str | None:
    key = os.environ.get(KEY_VARIABLE, "") if file is None else file.read_text()
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("the key holds what no key has")
    return key or None


def _once(asked: Place, *, as_json: bool) -> str | None:
    try:
        first = read(asked)
        time.sleep(_ONCE_S)
        told = figures(first, read(asked))
    except Unreachable as error:
        return f"top: {asked}: {error}"
    _write(sys.stdout, told, asked, as_json=as_json)
    return None


def _write(output: TextIO, told: Figures, asked: Place, *, as_json: bool) -> None:
    if as_json:
        output.write(json.dumps(asdict(told)) + "\n")
    else:
        width = shutil.get_terminal_size().columns
        output.write("\n".join(screen.lines(told, str(asked), width)) + "\n")
    output.flush()


def _live(asked: Place, interval_s: float, *, as_json: bool) -> None:
    """Until it is interrupted. A gateway that goes is waited for."""
    on_terminal = sys.stdout.isatty() and not as_json
    readings: deque[Reading] = deque()
    failure: str | None = None
    with _full_screen() if on_terminal else contextlib.nullcontext():
        while True:
            began_s, before = time.monotonic(), failure
            failure = _turn(asked, readings, on_terminal=on_terminal, as_json=as_json)
            if failure is not None and (on_terminal or failure != before):
                _show_failure(failure, on_terminal=on_terminal)
            time.sleep(max(0.0, began_s + interval_s - time.monotonic()))


def _turn(
    asked: Place, readings: deque[Reading], *, on_terminal: bool, as_json: bool
) -> str | None:
    """One look, and what it says; returns why there was nothing to show."""
    try:
        readings.append(read(asked))
    except Unreachable as error:
        readings.clear()
        return f"{asked}: {error}; trying again"
    now = readings[-1]
    while len(readings) > 2 and readings[1].at_s <= now.at_s - _WINDOW_S:
        readings.popleft()
    told = figures(readings[0], now)
    if on_terminal:
        size = shutil.get_terminal_size()
        _paint(screen.lines(told, str(asked), size.columns, size.lines))
    else:
        _write(sys.stdout, told, asked, as_json=as_json)
    return None


def _show_failure(message: str, *, on_terminal: bool) -> None:
    if on_terminal:
        _paint([message[: shutil.get_terminal_size().columns]])
    else:
        sys.stderr.write(f"openai-frontend: top: {message}\n")


def _paint(lines: list[str]) -> None:
    """Over what stands there: a screen that is cleared first flickers."""
    sys.stdout.write(_HOME + f"{_TO_LINE_END}\n".join(lines) + _TO_LINE_END + _TO_END)
    sys.stdout.flush()


@contextlib.contextmanager
def _full_screen() -> Iterator[None]:
    """The terminal is as it was in the end, however it ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.stdout.write(_OPEN)
    try:
        yield
    finally:
        sys.stdout.write(_CLOSE)
        sys.stdout.flush()
