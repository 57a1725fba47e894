"""Writes tables to standard output."""

import sys
from collections.abc import Iterable, Sequence

_UNBOUNDED = 100_000  # columns: output to a file or a pipe is not cut


def write(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """On a terminal, long cells wrap."""
    from rich.console import Console  # takes 0.1 s to import
    from rich.table import Table
    from rich.text import Text

    table = Table(*headings, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    with console.capture() as capture:
        console.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))
