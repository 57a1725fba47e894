"""The figures as a table and as JSON. Makes text; losses look like wins."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.budgets import BUDGETS, Budget
from benchmarks.figures import FIGURES, Figure
from benchmarks.measurement import Round
from benchmarks.noise import Doubt
from benchmarks.process_stat import Cores
from benchmarks.summary import Summary

_HEADINGS = ("figure", "median", "range", "unit", "demanded", "designed")


def summaries(rounds: Sequence[Round]) -> dict[str, Summary]:
    """Each figure over all rounds that have it."""
    return {
        figure.name: Summary.of(values)
        for figure in FIGURES
        if (values := [each.figures[figure.name] for each in rounds if figure.name in each.figures])
    }


def table(found: Mapping[str, Summary]) -> str:
    """One line for each figure."""
    rows: list[tuple[str, ...]] = [_HEADINGS]
    rows += [_row(figure, found[figure.name]) for figure in FIGURES if figure.name in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows) + "\n"


def _row(figure: Figure, summary: Summary) -> tuple[str, ...]:
    budget = BUDGETS.get(figure.name, Budget())
    low, high = _number(summary.low, figure), _number(summary.high, figure)
    return (
        figure.title,
        _number(summary.median, figure),
        f"{low} - {high}",
        figure.unit,
        _verdict(budget, summary.median, budget.demanded),
        _verdict(budget, summary.median, budget.designed),
    )


def _number(value: float, figure: Figure) -> str:
    return f"{value:,.{figure.digits}f}"


def _verdict(budget: Budget, value: float, limit: float | None) -> str:
    if limit is None:
        return ""
    sign = ">=" if budget.at_least else "<="
    return f"{sign} {limit:,g} {'met' if budget.holds(value, limit) else 'MISSED'}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    left, numbers, rest = row[0].ljust(widths[0]), row[1:3], row[3:]
    cells = [left, *(cell.rjust(width) for cell, width in zip(numbers, widths[1:3], strict=True))]
    cells += [cell.ljust(width) for cell, width in zip(rest, widths[3:], strict=True)]
    return "  ".join(cells).rstrip()


def conditions(cores: Cores, machine: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """What the table holds for."""
    pinned = (
        f"server on core {cores.server}, client on core {cores.client}"
        if cores.server is not None
        else "one core only: server and client share it, rates and times say little"
    )
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {pinned}\n{software}\n"
    )


def shares(rounds: Sequence[Round]) -> str:
    """That the client was not the limit."""
    found = {name: [each.loads[name].client_share for each in rounds] for name in rounds[0].loads}
    most = ", ".join(f"{name} {max(values):.0%}" for name, values in found.items())
    return f"the client's share of its core, at most: {most}\n"


def document(
    rounds: Sequence[Round],
    doubts: Sequence[Sequence[Doubt]],
    conditions: Mapping[str, Any],
) -> str:
    """All of it as JSON, every round's values too."""
    return json.dumps(
        {
            **conditions,
            "figures": {
                name: {"median": each.median, "low": each.low, "high": each.high}
                for name, each in summaries(rounds).items()
            },
            "rounds": [
                {"figures": each.figures, "doubts": [str(doubt) for doubt in of_round]}
                for each, of_round in zip(rounds, doubts, strict=True)
            ],
        },
        indent=2,
    )
