"""Results of several rounds as medians and full ranges. Pure."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.figures import FIGURES
from benchmarks.peers.rounds import Result


def summaries(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One entry for each flags, load and server, in the order of their first result.

    Results that failed count only as a number.
    """
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for each in results:
        groups.setdefault((each.flags, each.load, each.server), []).append(each)
    return [
        {
            "flags": flags,
            "load": load,
            "server": server,
            "rounds": len(group),
            "failed": sum(each.failure is not None for each in group),
            "client_share": max(each.client_share for each in group),
            "figures": _figures([each for each in group if each.failure is None]),
        }
        for (flags, load, server), group in groups.items()
    ]


def _figures(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    found = {}
    for figure in FIGURES:
        values = [each.figures[figure.name] for each in results if figure.name in each.figures]
        if values:
            median = statistics.median(values)
            found[figure.name] = {"median": median, "low": min(values), "high": max(values)}
    return found
