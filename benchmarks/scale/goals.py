"""The goals R3, R4 and R5 of several gateways: `make bench-scale ARGS=--goals`.

The figures are those of one machine, whose cores gateways, routers and client share.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.scale import changes, fleet
from benchmarks.scale.changes import Killed, Plan, Scaled, Updated
from benchmarks.scale.fleet import Fleet

_MODEL = {"tokens_per_second": Plan().token_rate, "max_model_len": 65_536}
_OPTIONS = ("--drain-delay-s=3", "--graceful-shutdown-timeout-s=300")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """By deployment."""

    killed: Mapping[str, Killed]  # R3
    updated: Mapping[str, Updated]  # R4
    scaled: Scaled  # R5
    load_average: float  # of the machine before the run: what others did


@dataclass(frozen=True, slots=True)
class Goal:
    """What was measured beside what it may be at most."""

    name: str
    figure: float
    limit: float

    @property
    def missed(self) -> bool:
        return self.figure > self.limit


def run(plan: Plan, say: Callable[[str], None]) -> Found:
    """All of them in turn, in about half an hour; `say` gets each result as soon as it is known."""
    load_average = os.getloadavg()[0]
    killed: dict[str, Killed] = {}
    updated: dict[str, Updated] = {}
    for router in ("HAProxy", "Envoy"):
        with (
            tempfile.TemporaryDirectory() as folder,
            fleet.processes(Path(folder), *_OPTIONS, router=router.lower(), **_MODEL) as gateways,
        ):
            _change(router, gateways, plan, killed, updated, say)
    with (
        tempfile.TemporaryDirectory() as folder,
        fleet.replicas(Path(folder), **_MODEL) as replicas,
    ):
        _change("Ray Serve", replicas, plan, killed, updated, say)
        scaled = asyncio.run(changes.scale(replicas, plan))
        say(f"R5 Ray Serve {scaled}")
    return Found(
        killed=killed,
        updated=updated,
        scaled=scaled,
        load_average=load_average,
    )


def _change(
    name: str,
    gateways: Fleet,
    plan: Plan,
    killed: dict[str, Killed],
    updated: dict[str, Updated],
    say: Callable[[str], None],
) -> None:
    killed[name] = asyncio.run(changes.kill(gateways, plan))
    say(f"R3 {name} {killed[name]}")
    updated[name] = asyncio.run(changes.update(gateways, plan))
    say(f"R4 {name} {updated[name]}")


def table(plan: Plan, found: Found) -> str:
    """In Markdown."""
    return "\n".join(
        [
            f"Load average before the run: {found.load_average:.1f}.",
            "",
            *_goals(goals(found)),
            *_killed(plan, found.killed),
            *_updated(plan, found.updated),
            *_scaled(plan, found.scaled),
        ]
    )


def _goals(rows: Sequence[Goal]) -> list[str]:
    return [
        "| goal | at most | measured | |",
        "|---|--:|--:|---|",
        *(
            f"| {each.name} | {each.limit:g} | {each.figure:.3g} "
            f"| {'missed' if each.missed else ''} |"
            for each in rows
        ),
        "",
    ]


def _killed(plan: Plan, rows: Mapping[str, Killed]) -> list[str]:
    return [
        f"| R3, one of three killed under {plan.per_s:.0f} requests/s | requests | lost without a "
        "byte | streams cut | last loss after the kill, s | TTFT p99, ms | answered from 2 s on "
        "| back after, s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *(
            f"| {name} | {each.outcome.requests:,} | {each.outcome.lost} | {each.outcome.cut} "
            f"| {each.outcome.errors_s:.2f} | {each.outcome.ttft_p99_s * 1e3:.0f} "
            f"| {each.goodput:.1%} | {'' if each.back_s is None else f'{each.back_s:.1f}'} |"
            for name, each in rows.items()
        ),
        "",
    ]


def _updated(plan: Plan, rows: Mapping[str, Updated]) -> list[str]:
    return [
        f"| R4, update of three beside {plan.long_streams} streams and {plan.update_per_s:.0f} "
        "requests/s | requests | lost | 5xx | cut | streams complete | shortest, s | update, s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *(
            f"| {name} | {each.outcome.requests:,} | {each.outcome.lost} | {each.outcome.errors} "
            f"| {each.outcome.cut} | {each.streams - each.streams_cut} of {each.streams} "
            f"| {each.stream_s:.0f} | {each.update_s:.0f} |"
            for name, each in rows.items()
        ),
        "",
    ]


def _scaled(plan: Plan, each: Scaled) -> list[str]:
    return [
        f"| R5, {2 * plan.slots} users, {plan.slots} slots per replica | requests | failed "
        "| three after, s | one again after, s | turns | TTFT p99 at first, ms | with three, ms |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        f"| Ray Serve | {each.requests:,} | {each.failed} | {each.up_s:.0f} | {each.down_s:.0f} "
        f"| {each.turns} | {each.ttft_p99_before_s * 1e3:.0f} "
        f"| {each.ttft_p99_after_s * 1e3:.0f} |",
        "",
    ]


def goals(found: Found) -> Sequence[Goal]:
    """What was measured beside what it may be."""
    return [
        *(goal for name, each in found.killed.items() for goal in _after_kill(name, each)),
        *(goal for name, each in found.updated.items() for goal in _after_update(name, each)),
        Goal("R5: requests failed while the number of replicas changes", found.scaled.failed, 0),
        Goal("R5: changes of direction of their number", found.scaled.turns, 1),
    ]


def _after_kill(name: str, killed: Killed) -> Sequence[Goal]:
    return [
        Goal(f"R3, {name}: requests lost without a byte", killed.outcome.lost, 0),
        Goal(f"R3, {name}: seconds until the last loss", killed.outcome.errors_s, 1),
    ]


def _after_update(name: str, updated: Updated) -> Sequence[Goal]:
    outcome = updated.outcome
    return [
        Goal(f"R4, {name}: requests lost, cut or with 5xx", outcome.lost + outcome.cut, 0),
        Goal(f"R4, {name}: long streams cut", updated.streams_cut, 0),
    ]


def document(plan: Plan, found: Found) -> dict[str, Any]:
    return {
        "plan": asdict(plan),
        "goals": [{**asdict(each), "missed": each.missed} for each in goals(found)],
        **asdict(found),
    }
