"""Where the server's time goes while it is saturated, by streams or by short chats.

cProfile makes each Python call dearer, so shares count here and microseconds do not; the numbers
of calls are exact, a coroutine's resumptions among them. It sees the event loop's thread alone, by
the clock: on a busy machine, calls that release the GIL look dear. The calls of an idle server, its
periodic checks, are measured first and left out of the sum (`Profile.calls`), not of the table: the
slower the machine, the more of them fall to one request.
"""

import os
import pstats
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import server_process
from benchmarks.measurement import Bench
from benchmarks.profiled_server import START, STOP
from benchmarks.scenario import MOST_STREAMS, SCENARIOS, Scenario
from benchmarks.server_process import ServerProcess

_ROWS = 45
_WRITTEN_S = 10.0
_IDLE_S = 1.5
_UNPROFILED_S = 0.5
_LEAST_RESPONSES = 320  # five or more per connection, whose opening counts too
Function = tuple[str, int, str]  # file, line and name
Row = tuple[int, int, float, float, Any]  # of cProfile: calls, own and total seconds, callers

# scenario -> unit that calls count by
_PROFILED = {
    str(MOST_STREAMS): "chunk",
    f"{MOST_STREAMS}_tools": "chunk",
    f"{MOST_STREAMS}_calls": "chunk",
    f"{MOST_STREAMS}_logprobs": "chunk",
    "chat": "request",
    "completion": "request",
    "whole": "request",
}


@dataclass(frozen=True, slots=True)
class Profile:
    """Of one kind of load."""

    scenario: str  # its name
    title: str
    rows: Mapping[Function, Row]
    units: int  # chunks or requests
    idle_calls: float  # that an idle server would have made in the same time

    @property
    def calls(self) -> float:
        """Calls per unit, of all functions."""
        return (_calls(self.rows) - self.idle_calls) / self.units


def profiles(bench: Bench) -> Iterator[Profile]:
    """One for each kind of load."""
    output = bench.repository.parent / "profile"
    launcher = ["-m", "benchmarks.profiled_server", str(output)]
    with server_process.gateway(bench.repository, bench.cores.server, launcher) as gateway:
        profiler = _Profiler(gateway.pid, output)
        idle_calls_per_s = _idle_calls_per_s(bench, gateway, profiler)
        for scenario in SCENARIOS:
            if scenario.name not in _PROFILED:
                continue
            title = f"{scenario.title}, calls per {_PROFILED[scenario.name]}"
            bench.say(title)
            rows, seconds, units = _profile(bench, gateway, profiler, scenario)
            yield Profile(scenario.name, title, rows, units, idle_calls_per_s * seconds)


class _Profiler:
    """Profiles the server's event loop inside a `with` block."""

    def __init__(self, pid: int, output: Path) -> None:
        self._pid = pid
        self._output = output
        self._began_s = 0.0
        self.rows: Mapping[Function, Row] = {}
        self.seconds = 0.0

    def __enter__(self) -> "_Profiler":
        self._output.unlink(missing_ok=True)
        self._began_s = time.perf_counter()
        os.kill(self._pid, START)
        return self

    def __exit__(self, *error: object) -> None:
        os.kill(self._pid, STOP)
        self.seconds = time.perf_counter() - self._began_s
        _wait_for(self._output)
        stats: Any = pstats.Stats(str(self._output))  # typeshed does not have its rows
        self.rows = stats.stats


def _idle_calls_per_s(bench: Bench, gateway: ServerProcess, profiler: _Profiler) -> float:
    bench.load(gateway, connections=1, measured_s=_UNPROFILED_S)
    rates = []
    for _ in range(2):  # the lower rate, without work that is done once after the start
        with profiler:
            time.sleep(_IDLE_S)
        rates.append(_calls(profiler.rows) / profiler.seconds)
    return min(rates)


def _profile(
    bench: Bench, gateway: ServerProcess, profiler: _Profiler, scenario: Scenario
) -> tuple[Mapping[Function, Row], float, int]:
    options = dict(scenario.options)
    bench.load(gateway, **{**options, "measured_s": _UNPROFILED_S})  # what is made once
    if _PROFILED[scenario.name] == "request":
        options["least_responses"] = _LEAST_RESPONSES
    with profiler:
        measured = bench.load(gateway, **options)
    return profiler.rows, profiler.seconds, measured.all_chunks or measured.all_responses


def _calls(rows: Mapping[Function, Row]) -> int:
    return sum(row[1] for row in rows.values())


def _wait_for(output: Path) -> None:
    end_s = time.perf_counter() + _WRITTEN_S
    while not output.exists() and time.perf_counter() < end_s:
        time.sleep(0.05)


def table(profile: Profile) -> str:
    """The functions that take most of the time."""
    rows, units = profile.rows.items(), profile.units
    total_s = sum(row[2] for _, row in rows)
    lines = [f"{'own':>6} {'with callees':>12} {'calls':>9}  function"]
    for (file, line, name), (_, calls, own_s, all_s, _) in sorted(
        rows, key=lambda item: item[1][2], reverse=True
    )[:_ROWS]:
        place = f"{'/'.join(Path(file).parts[-2:])}:{line} " if line else ""
        shares = f"{own_s / total_s:6.1%} {all_s / total_s:12.1%} {calls / units:9.3f}"
        lines.append(f"{shares}  {place}{name}")
    return "\n".join(lines)
