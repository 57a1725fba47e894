"""The arguments of a call whose name the request dictates: the whole answer is one object."""

from collections.abc import Generator
from dataclasses import dataclass

from openai_frontend.parsing.cursor import Cursor
from openai_frontend.parsing.output import Output
from openai_frontend.parsing.values import ValueReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedArguments:
    """Which function is called."""

    name: str
    summary: str = "the arguments alone"
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    bare_starts: tuple[str, ...] = ("{",)
    line_starts: tuple[str, ...] = ()
    frames_output: bool = False

    def read(self, cursor: Cursor, output: Output, start: str) -> Generator[None, None, None]:
        """Reads the object."""
        output.begin(self.name)
        cursor.forget()
        yield from ValueReader(cursor, output.arguments).read()
        output.end()
        cursor.record()
