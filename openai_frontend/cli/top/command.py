"""Runs `top`: scrapes the gateway, computes rates, shows them and repeats."""

import contextlib
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from openai_frontend.cli.console import console_of
from openai_frontend.cli.top.rates import GatewayRow, GatewayStats, compute_row, compute_stats
from openai_frontend.cli.top.scrape import (
    GatewayAddress,
    Scrape,
    Unreachable,
    merged,
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
        gateways = Gateways(_addresses(arguments))
    except OSError as error:
        files = [str(path) for name in ("ca", "certificate") if (path := arguments[name])]
        return f"top: {error.filename or ', '.join(files)}: {error.strerror}"  # ssl names no file
    except ValueError as error:
        return f"top: {error}"
    console = console_of(sys.stdout)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):  # the usual ways to leave it
        if arguments["once"]:
            return _once(gateways, console, as_json=arguments["as_json"])
        full_screen = console.is_terminal and not console.is_dumb_terminal
        if full_screen and not arguments["as_json"]:
            _show_live(gateways, console, arguments["interval"])
        else:
            _write_each(gateways, console, arguments["interval"], as_json=arguments["as_json"])
    return None


def _addresses(arguments: Mapping[str, Any]) -> list[GatewayAddress]:
    urls = dict.fromkeys(arguments["url"])
    if len(urls) > 1 and arguments["unix_socket"] is not None:
        raise ValueError("--unix-socket is one gateway: give it at most one URL")
    key = _key(arguments["key_file"])
    return [
        parse_address(
            url,
            key=key,
            unix_socket=arguments["unix_socket"],
            ca=arguments["ca"],
            certificate=arguments["certificate"],
        )
        for url in urls
    ]


def _key(file: Path | None) -> str | None:
    key = os.environ.get(_KEY_VARIABLE, "") if file is None else file.read_text()
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("the API key contains invalid characters")
    return key or None


def _once(gateways: "Gateways", console: Console, *, as_json: bool) -> str | None:
    try:
        gateways.next_stats()
        time.sleep(_ONCE_S)
        stats = gateways.next_stats()
    except Unreachable as error:
        return f"top: {gateways}: {error}"
    _write(stats, gateways, console, as_json=as_json)
    return None


def _write(stats: GatewayStats, gateways: "Gateways", console: Console, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(asdict(stats)) + "\n")
    else:
        with console.capture() as capture:  # rich itself exits on a broken pipe
            console.print(view(stats, str(gateways), console.width))
        sys.stdout.write(capture.get())
    sys.stdout.flush()


def _show_live(gateways: "Gateways", console: Console, interval_s: float) -> None:
    """Full screen until interrupted. Retries a gateway that does not answer."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave the screen as it was
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            started_s = time.monotonic()
            try:
                stats = gateways.next_stats()
                shown = view(stats, str(gateways), console.width, console.height)
                live.update(shown, refresh=True)
            except Unreachable as error:
                live.update(f"{gateways}: {error}; retrying", refresh=True)
            time.sleep(max(0.0, started_s + interval_s - time.monotonic()))


def _write_each(
    gateways: "Gateways", console: Console, interval_s: float, *, as_json: bool
) -> None:
    """One table or object per update; one line on stderr for each new reason of failure."""
    last_failure = ""
    while True:
        started_s = time.monotonic()
        try:
            _write(gateways.next_stats(), gateways, console, as_json=as_json)
            last_failure = ""
        except Unreachable as error:
            failure = f"openai-frontend: top: {gateways}: {error}; retrying\n"
            if failure != last_failure:
                sys.stderr.write(failure)
            last_failure = failure
        time.sleep(max(0.0, started_s + interval_s - time.monotonic()))


class Gateways:
    """The gateways that are shown together."""

    def __init__(self, addresses: Sequence[GatewayAddress]) -> None:
        self._windows = {str(address): _Window(address) for address in addresses}

    def __str__(self) -> str:
        return (
            next(iter(self._windows))
            if len(self._windows) == 1
            else f"{len(self._windows)} gateways"
        )

    def next_stats(self) -> GatewayStats:
        """Scrape all of them. Raises Unreachable if none answers."""
        if len(self._windows) == 1:
            [window] = self._windows.values()
            return compute_stats(*window.next_scrapes())
        with ThreadPoolExecutor(len(self._windows)) as threads:
            answers = dict(
                zip(self._windows, threads.map(_answer, self._windows.values()), strict=True)
            )
        scraped = {
            name: each for name, each in answers.items() if not isinstance(each, Unreachable)
        }
        if not scraped:
            raise Unreachable("; ".join(f"{name}: {error}" for name, error in answers.items()))
        rows = [
            GatewayRow(gateway=name, state=str(each))
            if isinstance(each, Unreachable)
            else compute_row(name, *each)
            for name, each in answers.items()
        ]
        earlier = merged({name: each[0] for name, each in scraped.items()})
        now = merged({name: each[1] for name, each in scraped.items()})
        return replace(compute_stats(earlier, now), gateways=tuple(rows))


class _Window:
    """The scrapes of one gateway in the last `_WINDOW_S` seconds."""

    def __init__(self, address: GatewayAddress) -> None:
        self._address = address
        self._scrapes: deque[Scrape] = deque()

    def next_scrapes(self) -> tuple[Scrape, Scrape]:
        """The first one and a new one. Raises Unreachable, and then starts over."""
        try:
            latest = scrape(self._address)
        except Unreachable:
            self._scrapes.clear()
            raise
        self._scrapes.append(latest)
        while len(self._scrapes) > 2 and self._scrapes[1].at_s <= latest.at_s - _WINDOW_S:
            self._scrapes.popleft()
        return self._scrapes[0], latest


def _answer(window: _Window) -> tuple[Scrape, Scrape] | Unreachable:
    try:
        return window.next_scrapes()
    except Unreachable as error:
        return error
