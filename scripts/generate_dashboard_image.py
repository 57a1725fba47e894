"""Draws docs/images/dashboard.svg: the layout of the Grafana dashboard, without data."""

import html
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DASHBOARD = ROOT / "deploy" / "grafana" / "openai-frontend.json"
IMAGE = ROOT / "docs" / "images" / "dashboard.svg"

_COLUMN = 40  # pixels; Grafana's grid has 24 columns
_ROW = 11
_GAP = 6
_HEAD = 44

# Units of Grafana -> label of the vertical axis
UNITS = {
    "Bps": "bytes per second",
    "short": "count",
    "s": "seconds",
    "reqps": "requests/s",
    "percentunit": "percent",
}

_STYLE = """<style>
.page{fill:#f4f5f5}.panel{fill:#fff;stroke:#d8d9dc}.axis{stroke:#b8bcc4;fill:none}
text{font-family:sans-serif;fill:#24292e}.small{font-size:12px;fill:#6a7078}
@media (prefers-color-scheme:dark){.page{fill:#111217}.panel{fill:#181b1f;stroke:#2c3035}
.axis{stroke:#4a4f57}text{fill:#d5d7dd}.small{fill:#9a9fa8}}
</style>"""


def image(dashboard: Mapping[str, Any]) -> str:
    panels = dashboard["panels"]
    width = 24 * _COLUMN + _GAP
    height = _HEAD + _ROW * max(at["y"] + at["h"] for at in map(_position, panels)) + _GAP
    title = html.escape(f"Layout of the dashboard {dashboard['title']}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        _STYLE,
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text x="{_GAP * 2}" y="28" font-size="16" font-weight="600">{title}</text>',
        *(line for panel in panels for line in _panel(panel)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _position(panel: Mapping[str, Any]) -> Mapping[str, int]:
    position: Mapping[str, int] = panel["gridPos"]
    return position


def _panel(panel: Mapping[str, Any]) -> Iterator[str]:
    at = _position(panel)
    x, y = at["x"] * _COLUMN + _GAP, at["y"] * _ROW + _HEAD
    width, height = at["w"] * _COLUMN - _GAP, at["h"] * _ROW - _GAP
    unit = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    yield f'<rect class="panel" x="{x}" y="{y}" width="{width}" height="{height}" rx="3"/>'
    yield f'<text x="{x + 10}" y="{y + 20}" font-size="13">{html.escape(panel["title"])}</text>'
    yield f'<text class="small" x="{x + 10}" y="{y + 38}">{unit}</text>'
    yield f'<path class="axis" d="M{x + 10} {y + 44}V{y + height - 10}H{x + width - 10}"/>'


def page() -> str:
    return image(json.loads(DASHBOARD.read_text(encoding="utf-8")))


if __name__ == "__main__":
    IMAGE.write_text(page(), encoding="utf-8")
