"""Draws docs/images/dashboard.svg: the rows and panels of the Grafana dashboard, without data."""

import html
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DASHBOARD = ROOT / "deploy" / "grafana" / "openai-frontend.json"
IMAGE = ROOT / "docs" / "images" / "dashboard.svg"

_COLUMN = 40  # pixels; Grafana's grid has 24 columns
_GAP = 6
_HEAD = 44
_HEIGHTS = {"row": 34, "stat": 50, "timeseries": 50}

# Units of Grafana -> label of the vertical axis
UNITS = {
    "Bps": "bytes per second",
    "short": "count",
    "s": "seconds",
    "reqps": "requests/s",
    "percentunit": "percent",
}

_STYLE = """<style>
.page{fill:#f4f5f5}.panel{fill:#fff;stroke:#d8d9dc}
text{font-family:sans-serif;fill:#24292e}.small{font-size:12px;fill:#6a7078}
@media (prefers-color-scheme:dark){.page{fill:#111217}.panel{fill:#181b1f;stroke:#2c3035}
text{fill:#d5d7dd}.small{fill:#9a9fa8}}
</style>"""


def image(dashboard: Mapping[str, Any]) -> str:
    panels = dashboard["panels"]
    tops, height = _tops(panels)
    width = 24 * _COLUMN + _GAP
    title = html.escape(f"Layout of the dashboard {dashboard['title']}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        _STYLE,
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text x="{_GAP * 2}" y="28" font-size="16" font-weight="600">{title}</text>',
        *(line for panel in panels for line in _panel(panel, tops[panel["gridPos"]["y"]])),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _tops(panels: Iterable[Mapping[str, Any]]) -> tuple[dict[int, int], int]:
    """Row of Grafana's grid -> pixel, and the height of the picture: each line of panels has the
    same height, as there is nothing in them.
    """
    tops: dict[int, int] = {}
    bottom = _HEAD
    for panel in sorted(panels, key=lambda each: int(each["gridPos"]["y"])):
        if panel["gridPos"]["y"] not in tops:
            tops[panel["gridPos"]["y"]] = bottom
            bottom += _HEIGHTS[panel["type"]]
    return tops, bottom + _GAP


def _panel(panel: Mapping[str, Any], y: int) -> Iterator[str]:
    at, title = panel["gridPos"], html.escape(panel["title"])
    x, width = at["x"] * _COLUMN + _GAP, at["w"] * _COLUMN - _GAP
    if panel["type"] == "row":
        yield f'<text x="{x + 4}" y="{y + 24}" font-size="14" font-weight="600">{title}</text>'
        return
    height = _HEIGHTS[panel["type"]] - _GAP
    unit = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    yield f'<rect class="panel" x="{x}" y="{y}" width="{width}" height="{height}" rx="3"/>'
    yield f'<text x="{x + 10}" y="{y + 19}" font-size="13">{title}</text>'
    yield f'<text class="small" x="{x + 10}" y="{y + 36}">{unit}</text>'


def page() -> str:
    return image(json.loads(DASHBOARD.read_text(encoding="utf-8")))


if __name__ == "__main__":
    IMAGE.write_text(page(), encoding="utf-8")
