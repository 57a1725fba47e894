"""Renders gateway statistics as a table that fits the terminal."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from openai_frontend.cli.top.rates import GatewayStats

_MISSING = "-"
_GAP = 2  # columns of the terminal between two columns of the table
_NAME_WIDTH = 12  # that a longer name keeps on a narrow terminal
_URL_WIDTH = 32
_STATE_WIDTH = 16
_HEAD_LINES = 4  # address, summary, empty line, column headings


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cell: Callable[[Any], str]  # of a row: ModelStats or GatewayRow
    rank: int  # on a narrow terminal, columns with a high rank are left out first
    optional: bool = False  # left out if no row has a value


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
    _Column("tpot p99", lambda row: _seconds(row.tpot_p99_s), 10),
    _Column("queue p99", lambda row: _seconds(row.queue_p99_s), 9),
    _Column("kv cache", lambda row: _percent(row.kv_cache_usage), 7),
    _Column("rejected/s", lambda row: _number(row.rejected_per_s), 8),
    _Column("images/s", lambda row: _number(row.images_per_s), 11, optional=True),
    _Column("audio s/s", lambda row: _number(row.audio_seconds_per_s), 12, optional=True),
    _Column("decode p99", lambda row: _seconds(row.media_decode_p99_s), 13, optional=True),
    _Column("media hits", lambda row: _percent(row.media_hit_rate), 14, optional=True),
)


_GATEWAY_COLUMNS = (
    _Column("requests/s", lambda row: _number(row.requests_per_s), 1),
    _Column("in progress", lambda row: _number(row.requests_in_progress), 0),
    _Column("queued", lambda row: _number(row.queued), 2),
    _Column("streams", lambda row: _number(row.streams_open), 4),
    _Column("tokens/s", lambda row: _number(row.tokens_per_s), 3),
    _Column("rejected/s", lambda row: _number(row.rejected_per_s), 5),
    _Column("loop lag p99", lambda row: _seconds(row.loop_lag_p99_s), 6),
)


def view(
    stats: GatewayStats, address: str, width: int, height: int | None = None
) -> RenderableType:
    """Two lines, a row for each of several gateways, and one per model.

    `height`: models that do not fit are counted; None: all of them.
    """
    rows = stats.models
    hidden = 0
    head = _HEAD_LINES + (len(stats.gateways) + 2 if stats.gateways else 0)
    if height is not None and head + len(rows) > height:
        rows = rows[: max(height - head - 1, 0)]
        hidden = len(stats.models) - len(rows)
    gateways = [(each.replica or each.gateway, each.state, each) for each in stats.gateways]
    models = [(each.model, each.state, each) for each in rows]
    tables: list[RenderableType] = [_table("model", models, _COLUMNS, width)]
    if gateways:
        tables = [_table("gateway", gateways, _GATEWAY_COLUMNS, width, _URL_WIDTH), "", *tables]
    return Group(
        _line(f"openai-frontend {address}  {stats.status or 'state unknown'}"),
        _line(_summary(stats)),
        "",
        *tables,
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
        ("errors/s", _number(stats.errors_per_s)),
        ("tokens/write", _number(stats.tokens_per_write)),
        ("loop lag p99", _seconds(stats.loop_lag_p99_s)),
    )
    memory = stats.gpu_memory_used_bytes, stats.gpu_memory_total_bytes
    used, total = (None if each is None else each / 2**30 for each in memory)
    gpus = [] if used is None or total is None else [f"gpu memory {used:.1f} of {total:.1f} GiB"]
    return "  ".join([*(f"{name} {value}" for name, value in facts), *gpus])


def _table(
    heading: str,
    rows: Sequence[tuple[str, str, Any]],
    columns: Sequence[_Column],
    width: int,
    name_width: int = _NAME_WIDTH,
) -> Table:
    """Rows are a name, a state, and what the columns show between them."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    name_width = min(_longest(name for name, _, _ in rows), name_width)
    state_width = min(_longest(state for _, state, _ in rows), _STATE_WIDTH)
    table.add_column(heading, no_wrap=True, min_width=name_width)
    shown = _fitting([row for _, _, row in rows], columns, width - name_width - _GAP - state_width)
    for column in shown:
        table.add_column(column.heading, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=state_width)
    for name, state, row in rows:
        table.add_row(Text(name), *(column.cell(row) for column in shown), Text(state))
    return table


def _fitting(rows: Sequence[Any], columns: Sequence[_Column], width: int) -> list[_Column]:
    kept = set()
    for column in sorted(columns, key=lambda column: column.rank):
        if column.optional and all(column.cell(row) == _MISSING for row in rows):
            continue
        width -= _GAP + max(len(column.heading), _longest(map(column.cell, rows)))
        if width < 0:
            break
        kept.add(column)
    return [column for column in columns if column in kept]


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
