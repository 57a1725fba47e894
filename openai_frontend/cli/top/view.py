"""Renders gateway statistics as a table that fits the terminal."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from openai_frontend.cli.top.rates import GatewayStats, ModelStats

_MISSING = "-"
_GAP = 2  # columns of the terminal between two columns of the table
_NAME_WIDTH = 12  # that a longer name keeps on a narrow terminal
_STATE_WIDTH = 16
_HEAD_LINES = 4  # address, summary, empty line, column headings


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cell: Callable[[ModelStats], str]
    rank: int  # on a narrow terminal, columns with a high rank are left out first


def _number(value: float | None) -> str:
    if value is None:
        return _MISSING
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return _MISSING
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


def _percent(value: float | None) -> str:
    return _MISSING if value is None else f"{value * 100:.0f} %"


_COLUMNS = (
    _Column("running", lambda row: _number(row.running), 0),
    _Column("queued", lambda row: _number(row.queued), 3),
    _Column("waiting", lambda row: _number(row.engine_waiting), 2),
    _Column("tokens/s", lambda row: _number(row.tokens_per_s), 1),
    _Column("ttft p50", lambda row: _seconds(row.ttft_p50_s), 4),
    _Column("ttft p99", lambda row: _seconds(row.ttft_p99_s), 6),
    _Column("tpot p50", lambda row: _seconds(row.tpot_p50_s), 5),
    _Column("queue p99", lambda row: _seconds(row.queue_p99_s), 9),
    _Column("kv cache", lambda row: _percent(row.kv_cache_usage), 7),
    _Column("rejected/s", lambda row: _number(row.rejected_per_s), 8),
)


def view(
    stats: GatewayStats, address: str, width: int, height: int | None = None
) -> RenderableType:
    """Two lines about the gateway, then one row per model; `height` None: all of them."""
    rows = stats.models
    hidden = 0
    if height is not None and _HEAD_LINES + len(rows) > height:
        rows = rows[: max(height - _HEAD_LINES - 1, 0)]
        hidden = len(stats.models) - len(rows)
    return Group(
        _line(f"openai-frontend {address}  {stats.status or 'state unknown'}"),
        _line(_summary(stats)),
        "",
        _table(rows, width),
        *([_line(f"and {hidden} more")] if hidden else []),
    )


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="crop")


def _summary(stats: GatewayStats) -> str:
    facts = (
        ("requests/s", _number(stats.requests_per_s)),
        ("in progress", _number(stats.requests_in_progress)),
        ("streams", _number(stats.streams_open)),
        ("rejected/s", _number(stats.rejected_per_s)),
        ("tokens/write", _number(stats.tokens_per_write)),
        ("loop lag p99", _seconds(stats.loop_lag_p99_s)),
    )
    return "  ".join(f"{name} {value}" for name, value in facts)


def _table(rows: Sequence[ModelStats], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    name_width = min(_longest(row.model for row in rows), _NAME_WIDTH)
    state_width = min(_longest(row.state for row in rows), _STATE_WIDTH)
    table.add_column("model", no_wrap=True, min_width=name_width)
    columns = _fitting(rows, width - name_width - _GAP - state_width)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=state_width)
    for row in rows:
        cells = [column.cell(row) for column in columns]
        table.add_row(Text(row.model), *cells, Text(row.state))
    return table


def _fitting(rows: Sequence[ModelStats], width: int) -> list[_Column]:
    kept = set()
    for column in sorted(_COLUMNS, key=lambda column: column.rank):
        width -= _GAP + max(len(column.heading), _longest(map(column.cell, rows)))
        if width < 0:
            break
        kept.add(column)
    return [column for column in _COLUMNS if column in kept]


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
