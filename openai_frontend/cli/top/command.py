"""Runs `top`: scrapes the gateway, computes rates, shows them and repeats."""

import contextlib
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from openai_frontend.cli.console import console_of
from openai_frontend.cli.top.rates import GatewayStats, compute_stats
from openai_frontend.cli.top.scrape import (
    GatewayAddress,
    Scrape,
    Unreachable,
    parse_address,
    scrape,
)
from openai_frontend.cli.top.view import view

_KEY_VARIABLE = "OPENAI_API_KEY"  # OpenAI's SDK reads it too
_WINDOW_S = 10.0  # of rates and quantiles: one second alone has too few requests
_ONCE_S = 1.0  # between the two scrapes of --once


def run(arguments: Mapping[str, Any]) -> str | None:
    """Returns the error on one line, or None."""
    try:
        address = parse_address(
            arguments["url"],
            key=_key(arguments["key_file"]),
            unix_socket=arguments["unix_socket"],
            ca=arguments["ca"],
            certificate=arguments["certificate"],
        )
    except OSError as error:
        files = [str(path) for name in ("ca", "certificate") if (path := arguments[name])]
        return f"top: {error.filename or ', '.join(files)}: {error.strerror}"  # ssl names no file
    except ValueError as error:
        return f"top: {error}"
    console = console_of(sys.stdout)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):  # the usual ways to leave it
        if arguments["once"]:
            return _once(address, console, as_json=arguments["as_json"])
        full_screen = console.is_terminal and not console.is_dumb_terminal
        if full_screen and not arguments["as_json"]:
            _show_live(address, console, arguments["interval"])
        else:
            _write_each(address, console, arguments["interval"], as_json=arguments["as_json"])
    return None


def _key(file: Path | None) -> str | None:
    key = os.environ.get(_KEY_VARIABLE, "") if file is None else file.read_text()
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("the API key contains invalid characters")
    return key or None


def _once(address: GatewayAddress, console: Console, *, as_json: bool) -> str | None:
    try:
        first = scrape(address)
        time.sleep(_ONCE_S)
        stats = compute_stats(first, scrape(address))
    except Unreachable as error:
        return f"top: {address}: {error}"
    _write(stats, address, console, as_json=as_json)
    return None


def _write(
    stats: GatewayStats, address: GatewayAddress, console: Console, *, as_json: bool
) -> None:
    if as_json:
        sys.stdout.write(json.dumps(asdict(stats)) + "\n")
    else:
        with console.capture() as capture:  # rich itself exits on a broken pipe
            console.print(view(stats, str(address), console.width))
        sys.stdout.write(capture.get())
    sys.stdout.flush()


def _show_live(address: GatewayAddress, console: Console, interval_s: float) -> None:
    """Full screen until interrupted. Retries a gateway that does not answer."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave the screen as it was
    window = _Window(address)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            started_s = time.monotonic()
            try:
                stats = window.next_stats()
                shown = view(stats, str(address), console.width, console.height)
                live.update(shown, refresh=True)
            except Unreachable as error:
                live.update(f"{address}: {error}; retrying", refresh=True)
            time.sleep(max(0.0, started_s + interval_s - time.monotonic()))


def _write_each(
    address: GatewayAddress, console: Console, interval_s: float, *, as_json: bool
) -> None:
    """One table or object per update; one line on stderr for each new reason of failure."""
    window, last_failure = _Window(address), ""
    while True:
        started_s = time.monotonic()
        try:
            _write(window.next_stats(), address, console, as_json=as_json)
            last_failure = ""
        except Unreachable as error:
            failure = f"openai-frontend: top: {address}: {error}; retrying\n"
            if failure != last_failure:
                sys.stderr.write(failure)
            last_failure = failure
        time.sleep(max(0.0, started_s + interval_s - time.monotonic()))


class _Window:
    """The scrapes of the last `_WINDOW_S` seconds."""

    def __init__(self, address: GatewayAddress) -> None:
        self._address = address
        self._scrapes: deque[Scrape] = deque()

    def next_stats(self) -> GatewayStats:
        """Raises Unreachable, and then starts over."""
        try:
            latest = scrape(self._address)
        except Unreachable:
            self._scrapes.clear()
            raise
        self._scrapes.append(latest)
        while len(self._scrapes) > 2 and self._scrapes[1].at_s <= latest.at_s - _WINDOW_S:
            self._scrapes.popleft()
        return compute_stats(self._scrapes[0], latest)
