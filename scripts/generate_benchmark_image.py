"""Draws docs/images/peers.svg: the gateway and vLLM's servers, from the results that
`python -m benchmarks.peers --store` has written before.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
IMAGE = ROOT / "docs" / "images" / "peers.svg"

FLAGS = "lean"
LOADS = ("8 streams", "32 streams", "64 streams")
SERVERS = {
    "gateway": "this gateway",
    "vllm": "vllm serve",
    "vllm-rust": "vllm serve, Rust frontend",
}
PANELS = {"frontend_us": "frontend CPU per token, us", "ttft_p50_ms": "TTFT p50, ms"}

_WIDTH, _HEIGHT = 440, 270  # of a panel
_TOP, _BASE, _LEFT = 66, 236, 30  # of the bars
_BAR, _GROUP = 32, 132

_STYLE = """<style>
.page{fill:#fff}.s0{fill:#3b5b92}.s1{fill:#b26a00}.s2{fill:#7a8a99}.axis,.range{stroke:#555}
text{font-family:sans-serif;font-size:12px;fill:#24292e}.title{font-size:14px;font-weight:600}
@media (prefers-color-scheme:dark){.page{fill:#1e2129}.s0{fill:#7f9fd6}.s1{fill:#e0a040}
.s2{fill:#9aa7b4}.axis,.range{stroke:#aab}text{fill:#e4e6eb}}
</style>"""


def image(document: Mapping[str, Any]) -> str:
    """A panel for each figure: medians as bars, the lowest and highest round as a line."""
    rounds = document["plan"]["rounds"]
    title = f"The same vLLM engine behind three servers, {FLAGS} flags, median of {rounds} rounds"
    width = _WIDTH * len(PANELS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" '
        f'width="{width}" height="{_HEIGHT}" role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        _STYLE,
        f'<rect class="page" width="{width}" height="{_HEIGHT}"/>',
        *_legend(),
    ]
    for number, (figure, label) in enumerate(PANELS.items()):
        lines += _panel(document["summaries"], figure, label, number * _WIDTH)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    for number, label in enumerate(SERVERS.values()):
        x = _LEFT + number * 130
        yield f'<rect class="s{number}" x="{x}" y="10" width="12" height="12"/>'
        yield f'<text x="{x + 18}" y="21">{label}</text>'


def _panel(summaries: list[dict[str, Any]], figure: str, label: str, offset: int) -> Iterator[str]:
    found = {
        (each["load"], each["server"]): each["figures"][figure]
        for each in summaries
        if each["flags"] == FLAGS and each["load"] in LOADS
    }
    scale = (_BASE - _TOP) / max(each["high"] for each in found.values())
    left = offset + _LEFT
    yield f'<text class="title" x="{left}" y="46">{label}</text>'
    yield f'<path class="axis" d="M{left} {_BASE}H{left + _GROUP * len(LOADS) - 10}"/>'
    for group, load in enumerate(LOADS):
        x = left + group * _GROUP + 10
        yield f'<text x="{x + 48}" y="{_BASE + 18}" text-anchor="middle">{load}</text>'
        for number, server in enumerate(SERVERS):
            yield from _bar(found[load, server], scale, x + number * _BAR, number)


def _bar(figure: Mapping[str, float], scale: float, x: int, number: int) -> Iterator[str]:
    heights = [round(figure[name] * scale, 1) for name in ("low", "median", "high")]
    low, top, high = (round(_BASE - height, 1) for height in heights)
    middle = x + _BAR // 2 - 2
    yield f'<rect class="s{number}" x="{x}" y="{top}" width="{_BAR - 4}" height="{heights[1]}"/>'
    yield f'<path class="range" d="M{middle} {low}V{high}"/>'
    label = f"{figure['median']:.1f}"
    yield f'<text x="{middle}" y="{high - 4:.1f}" text-anchor="middle">{label}</text>'


if __name__ == "__main__":
    IMAGE.write_text(image(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
