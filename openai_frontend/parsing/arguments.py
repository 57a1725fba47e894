"""Writes a call's arguments as JSON. If a format's text does not show a value's type, the tool's
schema does (`argument_schema.py`).
"""

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass

from openai_frontend.parsing.argument_schema import Types
from openai_frontend.parsing.buffer import Cursor, ValueEnds
from openai_frontend.parsing.events import EventBuffer
from openai_frontend.parsing.schema_check import kind_of
from openai_frontend.parsing.values import PYTHON, converted, json_text


def _allows_any(_: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Expected:
    """The values that one argument may have."""

    types: Types
    allows: Callable[[object], bool] = _allows_any  # False if the schema forbids the value


def is_text(types: Types) -> bool:
    """Whether the argument can only be a string, so that it can be streamed."""
    return types == {"string"}


def typed_json(text: str, expected: Expected) -> str:
    """The complete text of an argument as JSON of an allowed type; otherwise as a string.

    A text that may be either is JSON, unless the schema allows only the string.
    """
    value = converted(text.strip())
    if value is None and expected.types and "string" not in expected.types:
        value = converted(text.strip(), PYTHON)  # for models that write True and {'a': 1}
    if value is not None and _is_value(value, text, expected):
        return value
    return f'"{json_text(text)}"'


def _is_value(value: str, text: str, expected: Expected) -> bool:
    parsed, types = json.loads(value), expected.types
    kind = kind_of(parsed)
    if kind == "string":
        return False  # quoted text keeps its quotes
    if not types:
        return expected.allows(parsed) or not expected.allows(text)
    if kind == "number" and parsed.is_integer():
        kind = "integer"
    if kind not in types and not (kind == "integer" and "number" in types):
        return False
    return "string" not in types or expected.allows(parsed) or not expected.allows(text)


class ArgumentsWriter:
    """Writes `{"key":value,...}` in the order of the arguments."""

    def __init__(self, output: EventBuffer) -> None:
        self._output = output
        self._before = "{"

    def key(self, key: str) -> None:
        """Write the next argument's name."""
        self._output.arguments(f'{self._before}"{json_text(key)}":')
        self._before = ","

    def close(self) -> None:
        """End the object and the call."""
        self._output.arguments("{}" if self._before == "{" else "}")
        self._output.end()

    def text_value(
        self, cursor: Cursor, ends: ValueEnds, expected: Expected
    ) -> Generator[None, None, None]:
        """Write a value that ends at a marker: a string as it arrives, others once they are
        complete.
        """
        types = expected.types
        if is_text(types) or (is_text(types - {"null"}) and (yield from cursor.peek()) != "n"):
            self._output.arguments('"')
            yield from cursor.value(ends, self._string_piece)
            self._output.arguments('"')
        else:
            collected = LimitedText(self._output)
            yield from cursor.value(ends, collected.add)
            self._output.arguments(typed_json("".join(collected.pieces), expected))

    def _string_piece(self, text: str) -> None:
        self._output.arguments(json_text(text))


class LimitedText:
    """A value's text, limited like arguments."""

    def __init__(self, output: EventBuffer) -> None:
        self.pieces: list[str] = []
        self._output = output
        self._room = output.max_arguments

    def add(self, text: str) -> None:
        self.pieces.append(text)
        self._room -= len(text)
        if self._room < 0:
            self._output.too_long()
