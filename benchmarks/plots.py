"""Draws a run's figures as PNG and SVG. Needs matplotlib, which nothing else here does."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.budgets import BUDGETS
from benchmarks.scenario import MOST_STREAMS, OPEN_LOOP, SCENARIOS, STREAMS

_OURS, _OTHERS, _LIMIT = "#2f6f9f", "#9aa5ad", "#b5482f"
_FORMATS = ("png", "svg")
_Figures = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class _Bar:
    label: str
    figure: str
    colour: str = _OURS


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    bars: Sequence[_Bar]
    limit: float | None = None  # what it is designed for, as a line
    logarithmic: bool = False


class NoMatplotlib(Exception):
    """It is not installed; the message says what to do."""


_FLOORS = (
    _Bar(f"floor: uvloop, {MOST_STREAMS} streams", "floor_us_per_chunk", _OTHERS),
    _Bar(f"floor: C, {MOST_STREAMS} streams", "c_floor_us_per_chunk", _OTHERS),
)


def draw(document: Mapping[str, Any], folder: Path, name: str) -> None:
    """`<name>_<what>.png` and `.svg`: what a chunk and a request cost, and what one waits for."""
    about = f"{document['machine']['cpu']}, commit {document['commit']}, {document['date']}"
    for what, panels in (
        ("chunk", _chunk_panels()),
        ("request", _request_panels()),
        ("latency", _latency_panels()),
    ):
        made = _figure(panels, document["figures"], about, salt=what)
        for form in _FORMATS:
            metadata = {"Date": None} if form == "svg" else {"Software": None}
            made.savefig(folder / f"{name}_{what}.{form}", dpi=130, metadata=metadata)


def _chunk_panels() -> list[_Panel]:
    cpu, rate = "cpu_us_per_chunk", "chunks_per_s"
    return [
        _Panel(
            "CPU per streamed chunk (us)",
            [*_streamed(cpu), *_FLOORS],
            BUDGETS[f"{cpu}_{MOST_STREAMS}"].designed,
        ),
        _Panel(
            "chunks per second, one core",
            _streamed(rate),  # the floors' rates are the client's limit, so no bars beside these
            BUDGETS[f"{rate}_{MOST_STREAMS}"].designed,
        ),
    ]


def _streamed(metric: str) -> list[_Bar]:
    return [
        _Bar(each.title, f"{metric}_{each.name}") for each in SCENARIOS if each.length == "stream"
    ]


def _request_panels() -> list[_Panel]:
    bars: dict[bool, list[_Bar]] = {False: [], True: []}
    for each in SCENARIOS:
        if each.length == "request":
            bar = _Bar(each.title, f"cpu_us_per_request_{each.name}")
            bars["prompt_bytes" in each.options].append(bar)
    return [
        _Panel("CPU per request (us)", bars[False]),
        _Panel("CPU per request (us), by the prompt's length", bars[True], logarithmic=True),
    ]


def _latency_panels() -> list[_Panel]:
    first_token = [
        _Bar(f"{each.title}, {rank}", f"ttft_{rank}_ms_{each.name}", colour)
        for each in (*STREAMS, OPEN_LOOP)
        for rank, colour in (("p50", _OURS), ("p99", _OTHERS))
    ]
    delay = [
        _Bar("worst, alone", "delay_max_ms_paced", _OTHERS),
        _Bar("p99, beside 1 MB prompts", "delay_p99_ms_beside_1mb"),
        _Bar("worst, beside 1 MB prompts", "delay_max_ms_beside_1mb"),
    ]
    return [
        _Panel("time to first token (ms)", first_token),
        _Panel(
            "delay of a paced stream's token (ms)",
            delay,
            BUDGETS["delay_max_ms_beside_1mb"].designed,
        ),
    ]


def _figure(panels: Sequence[_Panel], figures: _Figures, about: str, *, salt: str) -> Any:
    matplotlib = _matplotlib()
    # Text stays text, and two runs with the same figures make the same file
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": salt, "font.size": 9})
    made = importlib.import_module("matplotlib.figure").Figure(
        figsize=(12, 4.5), layout="constrained"
    )
    for axes, panel in zip(made.subplots(1, len(panels)), panels, strict=True):
        _fill(axes, panel, figures)
    made.supxlabel(about, fontsize=7, color="#666666")
    return made


def _fill(axes: Any, panel: _Panel, figures: _Figures) -> None:
    """Medians as bars, ranges over the rounds as lines; what was skipped has no bar."""
    bars = [bar for bar in panel.bars if bar.figure in figures]
    found = [figures[bar.figure] for bar in bars]
    medians = [each["median"] for each in found]
    below = [each["median"] - each["low"] for each in found]
    above = [each["high"] - each["median"] for each in found]
    drawn = axes.barh(
        range(len(bars)),
        medians,
        xerr=[below, above],
        color=[bar.colour for bar in bars],
        ecolor="#333333",
        log=panel.logarithmic,
    )
    axes.bar_label(
        drawn, [f"{median:,.{0 if median >= 100 else 1}f}" for median in medians], padding=3
    )
    axes.margins(x=0.15)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.limit is not None:
        axes.axvline(panel.limit, color=_LIMIT, linestyle="--", linewidth=1)


def _matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ModuleNotFoundError:
        message = "no plots: matplotlib is not installed (pip install matplotlib)"
        raise NoMatplotlib(message) from None
