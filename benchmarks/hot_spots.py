"""Where the server's time goes while it is saturated, by streams or by short chats.

cProfile makes each Python call dearer, so shares count here and microseconds do not; the numbers
of calls are exact, a coroutine's resumptions among them. It sees the event loop's thread alone, by
the clock: on a busy machine, calls that release the GIL look dear.
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
from benchmarks.scenario import MOST_STREAMS, SCENARIOS
from benchmarks.server_process import ServerProcess

_ROWS = 45
_WRITTEN_S = 10.0
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

    @property
    def calls(self) -> float:
        """Calls per unit, of all functions."""
        return sum(row[1] for row in self.rows.values()) / self.units


def profiles(bench: Bench) -> Iterator[Profile]:
    """One for each kind of load."""
    output = bench.repository.parent / "profile"
    launcher = ["-m", "benchmarks.profiled_server", str(output)]
    with server_process.gateway(bench.repository, bench.cores.server, launcher) as gateway:
        for scenario in SCENARIOS:
            if scenario.name not in _PROFILED:
                continue
            title = f"{scenario.title}, calls per {_PROFILED[scenario.name]}"
            bench.say(title)
            rows, units = _profile(bench, gateway, output, scenario.options)
            yield Profile(scenario.name, title, rows, units)


def _profile(
    bench: Bench, gateway: ServerProcess, output: Path, options: Mapping[str, Any]
) -> tuple[Mapping[Function, Row], int]:
    bench.load(gateway, **{**options, "measured_s": 0.5})  # what is made once, unprofiled
    output.unlink(missing_ok=True)
    os.kill(gateway.pid, START)
    measured = bench.load(gateway, **options)
    os.kill(gateway.pid, STOP)
    _wait_for(output)
    stats: Any = pstats.Stats(str(output))  # typeshed does not have its rows
    return stats.stats, measured.all_chunks or measured.all_responses


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
