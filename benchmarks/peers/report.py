"""A document as markdown: one table for each load, servers side by side. Losses look like wins."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.metric import Metric
from benchmarks.peers import metrics
from benchmarks.peers.servers import GATEWAY

Summary = Mapping[str, Any]


def markdown(document: Mapping[str, Any]) -> str:
    """What it holds for, then the tables."""
    parts = [_conditions(document)]
    groups: dict[tuple[str, str], list[Summary]] = {}
    for each in document["summaries"]:
        groups.setdefault((each["flags"], each["load"]), []).append(each)
    parts += [_section(flags, load, group) for (flags, load), group in groups.items()]
    parts.append(_notes(document))
    return "\n".join(part for part in parts if part)


def _conditions(document: Mapping[str, Any]) -> str:
    about = ", ".join(f"{name} {value}" for name, value in document["versions"].items())
    machine = document["machine"]
    return (
        f"{machine['cpu']}, {machine['cores used']} cores, {machine['system']}; {document['date']},"
        f" commit {document['commit']}\n\n{about}\n\nMedian of {document['plan']['rounds']} rounds"
        " (lowest to highest). No process is pinned. Last columns: the gateway divided by each"
        " peer.\n"
    )


def _section(flags: str, load: str, group: Sequence[Summary]) -> str:
    by_server = {each["server"]: each for each in group}
    peers = [name for name in by_server if name != GATEWAY] if GATEWAY in by_server else []
    headings = ["", *by_server, *(f"/ {peer}" for peer in peers)]
    rows = [headings, ["---"] + ["---:"] * (len(headings) - 1)]
    for metric in metrics.ALL:
        found = {name: each["figures"].get(metric.name) for name, each in by_server.items()}
        if any(found.values()):
            rows.append(_row(metric, found, peers))
    if len(rows) == 2:
        return ""  # aiperf measured nothing; the notes say why
    if any(each["client_share"] for each in by_server.values()):  # not of aiperf's
        shares = [f"{each['client_share']:.0%}" for each in by_server.values()]
        rows.append(["client's share of a core, at most", *shares, *("" for _ in peers)])
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"### {flags} flags, {load}\n\n{lines}\n"


def _row(
    metric: Metric, found: Mapping[str, Mapping[str, float] | None], peers: Sequence[str]
) -> list[str]:
    title = f"{metric.title}, {metric.unit}" if metric.unit else metric.title
    cells = [_cell(metric, each) for each in found.values()]
    return [title, *cells, *(_ratio(found[GATEWAY], found[peer]) for peer in peers)]


def _cell(metric: Metric, values: Mapping[str, float] | None) -> str:
    if values is None:
        return ""
    median, low, high = (f"{values[key]:,.{metric.digits}f}" for key in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def _ratio(ours: Mapping[str, float] | None, theirs: Mapping[str, float] | None) -> str:
    if ours is None or theirs is None or not theirs["median"]:
        return ""
    return f"{ours['median'] / theirs['median']:.2f}"


def _notes(document: Mapping[str, Any]) -> str:
    lines = [
        f"- {each['flags']}, {each['load']}, {each['server']}, round {each['number']}: {note}"
        for each in document["results"]
        for note in (*each["doubts"], *([f"DISCARDED: {each['failure']}"] * bool(each["failure"])))
    ]
    return "Notes on single rounds:\n\n" + "\n".join(lines) + "\n" if lines else ""
