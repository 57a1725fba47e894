"""Answers that a constraint forces to be nothing but calls."""

from collections.abc import Generator
from dataclasses import dataclass

from openai_frontend.parsing.buffer import Cursor
from openai_frontend.parsing.event_buffer import EventBuffer
from openai_frontend.parsing.formats.json_calls import JsonCalls
from openai_frontend.parsing.values import ValueReader

ANY_CALL = JsonCalls(
    summary='`[{"name": "f", "parameters": {"a": 1}}]`',
    separators=(),
    bare_starts=("[", "{"),
)


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

    def read(self, cursor: Cursor, output: EventBuffer, start: str) -> Generator[None, None, None]:
        """Reads the object."""
        output.begin(self.name)
        cursor.forget()
        yield from ValueReader(cursor, output.arguments).read()
        output.end()
        cursor.record()
