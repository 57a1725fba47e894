"""Outputs that a constraint limits to tool calls."""

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
    """The arguments of a function that the request prescribes: the whole output is one object."""

    name: str
    summary: str = "the arguments alone"
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    bare_starts: tuple[str, ...] = ("{",)
    line_starts: tuple[str, ...] = ()
    frames_output: bool = False

    def read(self, cursor: Cursor, output: EventBuffer, start: str) -> Generator[None, None, None]:
        output.begin(self.name)
        cursor.forget()
        yield from ValueReader(cursor, output.arguments).read()
        output.end()
        cursor.record()
