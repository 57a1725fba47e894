"""What a kind of tool syntax is to the parser."""

from collections.abc import Generator
from typing import Protocol

from openai_frontend.parsing.cursor import Cursor
from openai_frontend.parsing.output import Output


class Syntax(Protocol):
    """Reads calls out of text. Knows nothing of reasoning and of the text around the calls."""

    @property
    def summary(self) -> str:
        """How a call looks, in one line."""

    @property
    def starts(self) -> tuple[str, ...]:
        """Markers that may begin a call anywhere in the text."""

    @property
    def ends(self) -> tuple[str, ...]:
        """Markers that end a call, or calls; none where the value's own bracket does."""

    @property
    def bare_starts(self) -> tuple[str, ...]:
        """Characters that may begin a call where the text begins."""

    @property
    def line_starts(self) -> tuple[str, ...]:
        """The same where a line begins."""

    @property
    def frames_output(self) -> bool:
        """Whether all output is written in this syntax, calls or not."""

    def read(self, cursor: Cursor, output: Output, start: str) -> Generator[None, None, None]:
        """Reads from behind the start marker (or from the bare character), through all calls that
        follow one another. Raises `NotACall` where what comes is none.
        """
