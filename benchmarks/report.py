"""The figures as a table, as Markdown and as JSON. Makes text; losses look like wins."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.budgets import BUDGETS, Budget
from benchmarks.client_process import MOST_CLIENT_SHARE
from benchmarks.figures import FIGURES, Figure
from benchmarks.load import Measured
from benchmarks.measurement import Round
from benchmarks.noise import Doubt
from benchmarks.scenario import Scenario
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
    rows = [_HEADINGS, *_rows(found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows) + "\n"


def markdown(found: Mapping[str, Summary], about: str) -> str:
    """The same for a reader of a repository, under what it holds for."""
    rows = [_HEADINGS, ("---", "--:", "--:", "---", "---", "---"), *_rows(found)]
    lines = "\n".join(f"| {' | '.join(cell.strip() for cell in row)} |" for row in rows)
    return f"# The gateway with the mock engine\n\n{about.strip()}\n\n{lines}\n"


def _rows(found: Mapping[str, Summary]) -> list[tuple[str, ...]]:
    return [_row(figure, found[figure.name]) for figure in FIGURES if figure.name in found]


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


def conditions(known: Mapping[str, Any]) -> str:
    """What the table holds for."""
    machine, cores = known["machine"], known["cores"]
    pinned = (
        f"server on core {cores['server']}, client on core {cores['client']}"
        if cores["server"] is not None
        else "one core only: server and client share it, rates and times say little"
    )
    software = ", ".join(f"{name} {version}" for name, version in known["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {pinned}; "
        f"{known['plan']['rounds']} rounds; commit {known['commit'] or 'unknown'}, "
        f"{known['date']}\n{software}\n"
    )


def shares(rounds: Sequence[Round]) -> str:
    """That the client was not the limit."""
    found = {name: [each.loads[name].client_share for each in rounds] for name in rounds[0].loads}
    name, values = max(found.items(), key=lambda item: max(item[1]))
    return (
        f"the client's share of its core, at most: {max(values):.0%} ({name}); "
        f"above {MOST_CLIENT_SHARE:.0%} the run fails\n"
    )


def remarks(doubts: Sequence[Sequence[Doubt]], skipped: Mapping[str, str]) -> str:
    """What was left out and what is doubtful, a line for each."""
    lines = [f"skipped: {name}: {reason}" for name, reason in skipped.items()]
    lines += [
        f"round {number}: {doubt}"
        for number, of_round in enumerate(doubts, start=1)
        for doubt in of_round
    ]
    return "".join(f"{line}\n" for line in lines)


def witness(scenario: Scenario, found: Mapping[str, float], ours: Mapping[str, float]) -> str:
    """aiperf's figures of a load beside our medians."""
    figures = [
        f"{metric.title.strip()} {found[metric.name]:,.{metric.digits}f} {metric.unit}"
        f" (here {ours[f'{metric.name}_{scenario.name}']:,.{metric.digits}f})"
        for metric in scenario.metrics
        if metric.name in found
    ]
    return f"aiperf: {scenario.title}: {', '.join(figures)}"


def document(
    rounds: Sequence[Round],
    doubts: Sequence[Sequence[Doubt]],
    skipped: Mapping[str, str],
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """All of it for JSON, every round's values too."""
    return {
        **known,
        "figures": {
            name: {"median": each.median, "low": each.low, "high": each.high}
            for name, each in summaries(rounds).items()
        },
        "skipped": dict(skipped),
        "rounds": [
            {
                "figures": each.figures,
                "loads": {name: _told(load) for name, load in each.loads.items()},
                "doubts": [str(doubt) for doubt in of_round],
            }
            for each, of_round in zip(rounds, doubts, strict=True)
        ],
    }


def _told(load: Measured) -> dict[str, float]:
    return {
        "seconds": load.seconds,
        "server_cpu_s": load.server_cpu_s,
        "server_wait_s": load.server_wait_s,
        "client_share": load.client_share,
        "chunks": load.chunks,
        "tokens": load.tokens,
        "responses": load.responses,
    }
