"""A document as pictures: one for each set of flags, a panel for each figure. Needs matplotlib."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.figures import FIGURES, Figure
from benchmarks.peers.servers import GATEWAY, VLLM, VLLM_RUST

_COLORS = {GATEWAY: "#0072b2", VLLM: "#999999", VLLM_RUST: "#d55e00"}  # told apart by anyone
_SHOWN = (
    ("frontend_us", "tokens_per_s", "ttft_p50", "ttft_p99", "gap_p50", "gap_p99"),
    ("text_frontend_us", "texts_per_s", "latency_p50", "latency_p99"),  # of embeddings
)
_COLUMNS = 2

Summary = Mapping[str, Any]


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def write(document: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """`<name>_<flags>.png` and `.svg`; returns their paths."""
    summaries = document["summaries"]
    written = []
    for flags in dict.fromkeys(each["flags"] for each in summaries):
        of_flags = [each for each in summaries if each["flags"] == flags]
        title = f"{flags} flags, {document['machine']['cpu']}, commit {document['commit']}"
        written += _picture(of_flags, title, folder / f"{name}_{flags}")
    return written


def _picture(summaries: Sequence[Summary], title: str, path: Path) -> list[Path]:
    shown = _shown(summaries)
    rows = -(-len(shown) // _COLUMNS)
    # Not pyplot: no display, nothing global
    canvas = importlib.import_module("matplotlib.figure").Figure(
        figsize=(6.5 * _COLUMNS, 3.2 * rows), layout="constrained"
    )
    panels = canvas.subplots(rows, _COLUMNS, squeeze=False).flatten()
    for panel, figure in zip(panels, shown, strict=False):
        _draw(panel, figure, summaries)
    panels[0].legend(fontsize="small")
    canvas.suptitle(f"{title}\nmedians; the lines span all rounds", fontsize="medium")
    paths = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    for each in paths:
        # Without a date the same figures give the same file
        metadata = {"Date": None} if each.suffix == ".svg" else None
        canvas.savefig(each, dpi=120, metadata=metadata)
    return paths


def _shown(summaries: Sequence[Summary]) -> list[Figure]:
    known = {name for each in summaries for name in each["figures"]}
    names = next(names for names in _SHOWN if names[0] in known)
    by_name = {figure.name: figure for figure in FIGURES}
    return [by_name[name] for name in names if name in known]


def _draw(panel: Any, figure: Figure, summaries: Sequence[Summary]) -> None:
    loads = list(dict.fromkeys(each["load"] for each in summaries))
    servers = list(dict.fromkeys(each["server"] for each in summaries))
    width = 0.8 / len(servers)
    for place, server in enumerate(servers):
        found = {
            loads.index(each["load"]): each["figures"][figure.name]
            for each in summaries
            if each["server"] == server and figure.name in each["figures"]
        }
        at = [load + (place - (len(servers) - 1) / 2) * width for load in found]
        medians = [each["median"] for each in found.values()]
        below = [each["median"] - each["low"] for each in found.values()]
        above = [each["high"] - each["median"] for each in found.values()]
        panel.bar(at, medians, width, yerr=(below, above), color=_COLORS[server], label=server)
    panel.set_xticks(range(len(loads)), [each.replace(", ", "\n") for each in loads])
    panel.tick_params(labelsize="small")
    better = {True: ", less is better", False: ", more is better", None: ""}
    panel.set_title(f"{figure.title}, {figure.unit}{better[figure.less_is_better]}", fontsize=10)
    panel.grid(axis="y", alpha=0.3)
    panel.set_axisbelow(True)
