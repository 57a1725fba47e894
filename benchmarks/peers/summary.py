"""Results of several rounds as medians and full ranges. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.peers import metrics
from benchmarks.peers.rounds import Result
from benchmarks.summary import Summary


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
    rounds = [each.figures for each in results]
    return {
        metric.name: asdict(Summary.of(values))
        for metric in metrics.ALL
        if (values := [figures[metric.name] for figures in rounds if metric.name in figures])
    }
