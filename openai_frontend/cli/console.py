"""The terminal: a rich console for a stream, and tables on standard output."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:  # takes 0.1 s to import
    from rich.console import Console

_UNBOUNDED = 100_000  # columns: output to a file or a pipe is not cut


def console_of(out: TextIO) -> "Console":
    """Only the stream decides whether it is a terminal: with FORCE_COLOR, for example, rich alone
    would write escape sequences into files and pipes.
    """
    from rich.console import Console

    return Console(
        file=out, force_terminal=out.isatty(), markup=False, highlight=False, emoji=False
    )


def write_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """On a terminal, long cells wrap."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*headings, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    console = console_of(sys.stdout)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    with console.capture() as capture:
        console.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))
