"""Figures as lines of text, as wide as the terminal. Writes nothing itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openai_frontend.cli.top.figures import Figures, ModelFigures

_NOTHING = "-"
_GAP = "  "
_NAME_WIDTH = 12  # that a model's name keeps, however narrow the terminal is
_STATE_WIDTH = 10


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cell: Callable[[ModelFigures], str]
    rank: int  # the last to go has the lowest


def _number(value: float | None) -> str:
    if value is None:
        return _NOTHING
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return _NOTHING
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


def _share(value: float | None) -> str:
    return _NOTHING if value is None else f"{value * 100:.0f} %"


_COLUMNS = (
    _Column("live", lambda row: _number(row.running), 0),
    _Column("queued", lambda row: _number(row.queued), 3),
    _Column("waiting", lambda row: _number(row.engine_waiting), 2),
    _Column("tokens/s", lambda row: _number(row.tokens_per_s), 1),
    _Column("ttft p50", lambda row: _seconds(row.ttft_p50_s), 4),
    _Column("ttft p99", lambda row: _seconds(row.ttft_p99_s), 6),
    _Column("token", lambda row: _seconds(row.token_p50_s), 5),
    _Column("queue p99", lambda row: _seconds(row.queue_p99_s), 9),
    _Column("cache", lambda row: _share(row.cache), 7),
    _Column("refused/s", lambda row: _number(row.rejected_per_s), 8),
)


def lines(told: Figures, where: str, width: int, height: int | None = None) -> list[str]:
    """A few about the gateway, then a table with a line for each model."""
    head = [f"openai-frontend {where}{_GAP}{told.status or 'state unknown'}", _summary(told), ""]
    rows = list(told.models)
    left_out = 0
    if height is not None and len(head) + 1 + len(rows) > height:
        shown = max(height - len(head) - 2, 0)
        left_out, rows = len(rows) - shown, rows[:shown]
    table = _table(rows, width)
    if left_out:
        table.append(f"and {left_out} more")
    return [line[:width] for line in (*head, *table)]


def _summary(told: Figures) -> str:
    facts = (
        ("requests/s", _number(told.requests_per_s)),
        ("at work", _number(told.at_work)),
        ("streams", _number(told.streams)),
        ("refused/s", _number(told.rejected_per_s)),
        ("tokens/write", _number(told.tokens_per_write)),
        ("loop lag p99", _seconds(told.loop_lag_p99_s)),
    )
    return _GAP.join(f"{name} {value}" for name, value in facts)


def _table(rows: Sequence[ModelFigures], width: int) -> list[str]:
    """Columns that do not fit are left out, the least telling first; then the state is cut."""
    names = ["model", *(row.model for row in rows)]
    states = ["state", *(row.state for row in rows)]
    longest = max(map(len, names))
    state_width = len(_GAP) + min(max(map(len, states)), _STATE_WIDTH)
    columns = _fitting(rows, width - min(longest, _NAME_WIDTH) - state_width)
    taken = state_width + sum(len(_GAP) + len(column[0]) for column in columns)
    name_width = max(min(longest, width - taken), 0)
    return [
        _GAP.join([_cut(name, name_width).ljust(name_width), *cells, state])[:width].rstrip()
        for name, state, *cells in zip(names, states, *columns, strict=True)
    ]


def _fitting(rows: Sequence[ModelFigures], room: int) -> list[list[str]]:
    """The columns that there is room for, each as its cells from the heading on, all as wide."""
    made = [[column.heading, *map(column.cell, rows)] for column in _COLUMNS]
    widths = [max(map(len, cells)) for cells in made]
    kept = set()
    for at in sorted(range(len(_COLUMNS)), key=lambda at: _COLUMNS[at].rank):
        room -= len(_GAP) + widths[at]
        if room < 0:
            break
        kept.add(at)
    return [[cell.rjust(widths[at]) for cell in made[at]] for at in sorted(kept)]


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else name[: max(width - 1, 0)] + "…"
