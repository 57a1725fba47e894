"""Writes a call's arguments as a JSON object, for the syntaxes that spell them one by one."""

from collections.abc import Generator

from openai_frontend.parsing.cursor import Cursor
from openai_frontend.parsing.dialects import json_text
from openai_frontend.parsing.markers import Markers
from openai_frontend.parsing.output import Output
from openai_frontend.parsing.schema_types import Types, is_text, typed_json


class ArgumentsWriter:
    """`{"key":value,...}`, in the order in which they come."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._before = "{"

    def key(self, key: str) -> None:
        """The next argument's name."""
        self._output.arguments(f'{self._before}"{json_text(key)}":')
        self._before = ","

    def close(self) -> None:
        """There are no more; the call ends."""
        self._output.arguments("{}" if self._before == "{" else "}")
        self._output.end()

    def text_value(
        self, cursor: Cursor, ends: Markers, types: Types
    ) -> Generator[None, None, None]:
        """A value whose text runs to a marker: a string as it comes, any other when it is whole."""
        if is_text(types) or (is_text(types - {"null"}) and (yield from cursor.peek()) != "n"):
            self._output.arguments('"')
            yield from cursor.stream(ends, self._string_piece)
            self._output.arguments('"')
        else:
            collected = _Collected(self._output)
            yield from cursor.stream(ends, collected.add)
            self._output.arguments(typed_json("".join(collected.pieces), types))

    def _string_piece(self, text: str) -> None:
        self._output.arguments(json_text(text))


class _Collected:
    """A value's text, no longer than arguments may be."""

    def __init__(self, output: Output) -> None:
        self.pieces: list[str] = []
        self._output = output
        self._room = output.max_arguments

    def add(self, text: str) -> None:
        self.pieces.append(text)
        self._room -= len(text)
        if self._room < 0:
            self._output.too_long()
