"""Writes a call's arguments as JSON. If a format's text does not show a value's type, the tool's
schema does: it is read, never validated with.
"""

import json
from collections.abc import Generator, Mapping
from typing import Any

from openai_frontend.parsing.buffer import Cursor, Markers
from openai_frontend.parsing.events import EventBuffer
from openai_frontend.parsing.values import PYTHON, converted, json_text

Types = frozenset[str]  # JSON Schema's type names; empty if unknown

_MAX_PARTS = 256  # limit of references and alternatives to follow
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_NAMES |= {dict: "object", type(None): "null"}


def argument_types(schema: Mapping[str, Any] | None, name: str) -> Types:
    """The types of one property of a function's parameters."""
    properties = (schema or {}).get("properties")
    if not isinstance(properties, Mapping) or name not in properties:
        return frozenset()
    return _types(properties[name], schema or {})


def _types(schema: object, root: Mapping[str, Any]) -> Types:
    """Follows each reference once, so that nested alternatives do not multiply."""
    found: set[str] = set()
    waiting, followed = [schema], set[str]()
    for _ in range(_MAX_PARTS):
        if not waiting:
            return frozenset(found)
        part = waiting.pop()
        if not isinstance(part, Mapping):
            return frozenset()
        types = _declared(part)
        more = [] if types else _alternatives(part, root, followed)
        if more is None:
            return frozenset()  # one unconstrained alternative makes everything possible
        found |= types
        waiting += more
    return frozenset()


def _declared(schema: Mapping[str, Any]) -> Types:
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset((declared,))
    if isinstance(declared, list):
        return frozenset(str(one) for one in declared)
    if "enum" in schema or "const" in schema:
        return _types_of(schema.get("enum", [schema.get("const")]))
    return frozenset()


def _alternatives(
    schema: Mapping[str, Any], root: Mapping[str, Any], followed: set[str]
) -> list[object] | None:
    """Subschemas with more information, except for a reference already followed; None if there are
    none.
    """
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        lists = (schema.get(key) for key in ("anyOf", "oneOf", "allOf"))
        return next((each for each in lists if isinstance(each, list)), None)
    if reference in followed:
        return []
    followed.add(reference)
    return [_referred(reference, root)]


def _types_of(values: object) -> Types:
    known = values if isinstance(values, list) else []
    return frozenset(_NAMES[type(value)] for value in known if type(value) in _NAMES)


def _referred(reference: str, root: Mapping[str, Any]) -> object:
    place: object = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        place = place.get(part) if isinstance(place, Mapping) else None
    return place


def is_text(types: Types) -> bool:
    """Whether the argument can only be a string, so that it can be streamed."""
    return types == {"string"}


def typed_json(text: str, types: Types) -> str:
    """The complete text of an argument as JSON of an allowed type; otherwise as a string."""
    value = converted(text.strip())
    if value is None and types and "string" not in types:
        value = converted(text.strip(), PYTHON)  # for models that write True and {'a': 1}
    if value is not None and _allowed(value, types):
        return value
    return f'"{json_text(text)}"'


def _allowed(value: str, types: Types) -> bool:
    kind = _NAMES[type(json.loads(value))]
    if kind == "string":
        return False  # quoted text keeps its quotes
    return not types or kind in types or (kind == "integer" and "number" in types)


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
        self, cursor: Cursor, ends: Markers, types: Types
    ) -> Generator[None, None, None]:
        """Write a value that ends at a marker: a string as it arrives, others once they are
        complete.
        """
        if is_text(types) or (is_text(types - {"null"}) and (yield from cursor.peek()) != "n"):
            self._output.arguments('"')
            yield from cursor.stream(ends, self._string_piece)
            self._output.arguments('"')
        else:
            collected = _LimitedText(self._output)
            yield from cursor.stream(ends, collected.add)
            self._output.arguments(typed_json("".join(collected.pieces), types))

    def _string_piece(self, text: str) -> None:
        self._output.arguments(json_text(text))


class _LimitedText:
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
