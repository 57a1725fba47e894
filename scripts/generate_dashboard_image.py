"""Draws docs/images/dashboard.svg: the panels of the Grafana dashboard with the series that
`scripts.record_dashboard` got from Prometheus. Grafana itself takes no part.
"""

import html
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DASHBOARD = ROOT / "deploy" / "grafana" / "openai-frontend.json"
SERIES = ROOT / "scripts" / "dashboard_series.json"
IMAGE = ROOT / "docs" / "images" / "dashboard.svg"

Line = Mapping[str, Any]  # label, values; null: no value at this step

_COLUMN = 40  # pixels; Grafana's grid has 24 columns
_GAP = 6
_HEAD = 44
_HEIGHTS = {"row": 34, "stat": 66, "timeseries": 128}
_PLOT_TOP, _PLOT_HEIGHT = 46, 58
_COLOURS = 6
_CHARACTER = 6.1  # of the small font, at most, in pixels


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(value: float) -> str:
    return f"{value / 1000:.3g} kB/s"


# Units of Grafana -> text of a value
UNITS: Mapping[str, Callable[[float], str]] = {
    "Bps": _bytes,
    "short": _count,
    "s": _seconds,
    "reqps": "{:.3g} requests/s".format,
    "percentunit": lambda value: f"{100 * value:.3g} %",
}

_STYLE = """<style>
.page{fill:#f4f5f5}.panel{fill:#fff;stroke:#d8d9dc}.line{fill:none;stroke-width:1.5}
text{font-family:sans-serif;fill:#24292e}.small{font-size:11px;fill:#6a7078}
.c0{stroke:#2f7d4f}.c1{stroke:#b3690b}.c2{stroke:#2463b8}.c3{stroke:#b0302a}.c4{stroke:#7b3fa8}
.c5{stroke:#56707a}
@media (prefers-color-scheme:dark){.page{fill:#111217}.panel{fill:#181b1f;stroke:#2c3035}
text{fill:#d5d7dd}.small{fill:#9a9fa8}.c0{stroke:#73bf69}.c1{stroke:#f2a93b}.c2{stroke:#6ea6f0}
.c3{stroke:#f2665e}.c4{stroke:#c08ae8}.c5{stroke:#9fb6bf}}
</style>"""


def image(dashboard: Mapping[str, Any], series: Mapping[str, Sequence[Line]]) -> str:
    panels = dashboard["panels"]
    tops, height = _tops(panels)
    width = 24 * _COLUMN + _GAP
    title = html.escape(f"The dashboard {dashboard['title']} under load")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        _STYLE,
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text x="{_GAP * 2}" y="28" font-size="16" font-weight="600">{title}</text>',
        *(
            line
            for panel in panels
            for line in _panel(panel, tops[panel["gridPos"]["y"]], series.get(panel["title"], ()))
        ),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _tops(panels: Iterable[Mapping[str, Any]]) -> tuple[dict[int, int], int]:
    """Row of Grafana's grid -> pixel, and the height of the picture."""
    tops: dict[int, int] = {}
    bottom = _HEAD
    for panel in sorted(panels, key=lambda each: int(each["gridPos"]["y"])):
        if panel["gridPos"]["y"] not in tops:
            tops[panel["gridPos"]["y"]] = bottom
            bottom += _HEIGHTS[panel["type"]]
    return tops, bottom + _GAP


def _panel(panel: Mapping[str, Any], y: int, series: Sequence[Line]) -> Iterator[str]:
    at, title = panel["gridPos"], html.escape(panel["title"])
    x, width = at["x"] * _COLUMN + _GAP, at["w"] * _COLUMN - _GAP
    if panel["type"] == "row":
        title += " (closed)" if panel["collapsed"] else ""
        yield f'<text x="{x + 4}" y="{y + 24}" font-size="14" font-weight="600">{title}</text>'
        return
    height = _HEIGHTS[panel["type"]] - _GAP
    unit = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    yield f'<rect class="panel" x="{x}" y="{y}" width="{width}" height="{height}" rx="3"/>'
    size = {"stat": 11, "timeseries": 12}[panel["type"]]
    yield f'<text x="{x + 10}" y="{y + 19}" font-size="{size}">{title}</text>'
    if panel["type"] == "stat":
        [line] = series
        shown = unit([each for each in line["values"] if each is not None][-1])
        yield f'<text x="{x + 10}" y="{y + 48}" font-size="20" font-weight="600">{shown}</text>'
        return
    yield from _plot(series, x + 10, y, width - 20, unit)


def _plot(
    series: Sequence[Line], x: int, y: int, width: int, unit: Callable[[float], str]
) -> Iterator[str]:
    """Lines from zero to the largest value, which is written above them."""
    most = max((each for line in series for each in line["values"] if each is not None), default=0)
    yield f'<text class="small" x="{x}" y="{y + 36}">{unit(most)}</text>'
    bottom = y + _PLOT_TOP + _PLOT_HEIGHT
    for index, line in enumerate(series):
        path = _path(line["values"], x, bottom, width, most or 1)
        yield f'<path class="line c{index % _COLOURS}" d="{path}"/>'
    yield from _legend([line["label"] for line in series], x, bottom + 15, x + width)


def _legend(labels: Sequence[str], x: float, y: int, end: int) -> Iterator[str]:
    """As many labels as one line has room for, and the number of the others."""
    for index, label in enumerate(labels):
        rest = len(labels) - index
        more = 8 * _CHARACTER if rest > 1 else 0
        if x + 16 + len(label) * _CHARACTER + more > end:
            yield f'<text class="small" x="{x:.0f}" y="{y}">and {rest} more</text>'
            return
        yield f'<path class="line c{index % _COLOURS}" d="M{x:.0f} {y - 4}h8"/>'
        yield f'<text class="small" x="{x + 11:.0f}" y="{y}">{html.escape(label)}</text>'
        x += 20 + len(label) * _CHARACTER


def _path(values: Sequence[float | None], x: int, bottom: int, width: int, most: float) -> str:
    parts, pen = [], "M"
    for at, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        left = x + at * width / (len(values) - 1)
        parts.append(f"{pen}{left:.0f} {bottom - value / most * _PLOT_HEIGHT:.1f}")
        pen = "L"
    return "".join(parts)


def page() -> str:
    dashboard, series = (json.loads(each.read_text("utf-8")) for each in (DASHBOARD, SERIES))
    return image(dashboard, series)


if __name__ == "__main__":
    IMAGE.write_text(page(), encoding="utf-8")
