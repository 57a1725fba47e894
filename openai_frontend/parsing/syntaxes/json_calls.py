"""Calls as JSON objects with a name and arguments, one by one or in arrays, between markers or
bare. Hermes, Llama 3, Granite, Phi 4, Nemotron, Mistral's older form, and any that say nothing.
"""

import json
from collections.abc import Generator
from dataclasses import dataclass

from openai_frontend.parsing.cursor import MAX_NAME, Cursor, NotACall
from openai_frontend.parsing.identifiers import is_name
from openai_frontend.parsing.output import Output
from openai_frontend.parsing.values import ValueReader, converted

_NAME_KEYS = frozenset(("name", "tool_name"))
_ARGUMENT_KEYS = frozenset(("arguments", "parameters"))
_BARE_KEYS = _NAME_KEYS | _ARGUMENT_KEYS | {"function", "type", "id", "tool_call_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls:
    """Where the objects stand. A bare object is a call only if it names an offered tool, and so
    is any other where `offered_only`.
    """

    summary: str
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    separators: tuple[str, ...] = (",", ";")
    bare_starts: tuple[str, ...] = ()
    line_starts: tuple[str, ...] = ()
    frames_output: bool = False
    offered_only: bool = False

    def read(self, cursor: Cursor, output: Output, start: str) -> Generator[None, None, None]:
        """Reads objects and arrays of them."""
        bare = self.offered_only or start not in self.starts
        goes_on = not bare or bool(self.line_starts)
        while True:
            yield from self._object_or_array(cursor, output, bare=bare)
            yield from cursor.skip_closing_brackets()
            yield from cursor.skip_space()
            after = yield from cursor.accept(*self.ends, *self.separators)
            if after in self.ends:
                cursor.record()
                return
            if not after and not (goes_on and (yield from cursor.peek()) == "{"):
                return

    def _object_or_array(
        self, cursor: Cursor, output: Output, *, bare: bool
    ) -> Generator[None, None, None]:
        yield from cursor.skip_space()
        opener = yield from cursor.peek()
        if opener == "{":
            yield from _CallObject(cursor, output, bare=bare).read()
            return
        yield from cursor.expect("[")
        while True:
            yield from cursor.skip_space()
            yield from _CallObject(cursor, output, bare=bare).read()
            yield from cursor.skip_space()
            after = yield from cursor.accept(",", "]")
            if after != ",":
                cursor.record()
                return


class _CallObject:
    """One object, its members in any order. Arguments that come before the name wait for it."""

    def __init__(self, cursor: Cursor, output: Output, *, bare: bool) -> None:
        self._cursor = cursor
        self._output = output
        self._bare = bare
        self._name = ""
        self._waiting: list[str] | None = None
        self._done = False
        self._nested = False

    def read(self) -> Generator[None, None, None]:
        yield from self._members()
        if not self._done:
            if not self._name:
                raise NotACall
            self._whole_call("".join(self._waiting or ("{}",)))
        self._cursor.record()

    def _members(self) -> Generator[None, None, None]:
        yield from self._cursor.expect("{")
        while True:
            yield from self._cursor.skip_space()
            yield from self._member((yield from self._short_string()))
            yield from self._cursor.skip_space()
            after = yield from self._cursor.accept(",", "}")
            if not after and not self._done:
                raise NotACall
            if after != ",":
                return

    def _member(self, key: str) -> Generator[None, None, None]:
        yield from self._cursor.skip_space()
        yield from self._cursor.expect(":")
        yield from self._cursor.skip_space()
        first = yield from self._cursor.peek()
        if key == "function" and first == "{" and not self._nested:
            self._nested = True
            yield from self._members()
        elif (key in _NAME_KEYS or key == "function") and not self._name:
            self._named((yield from self._short_string()))
        elif key in _ARGUMENT_KEYS and not self._done and self._waiting is None:
            yield from self._arguments(first)
        elif self._bare and not self._done and key not in _BARE_KEYS:
            raise NotACall  # early, so that an answer in JSON is not held back
        else:
            yield from ValueReader(self._cursor, _ignore).read()

    def _named(self, name: str) -> None:
        if not is_name(name) or (self._bare and name not in self._output.schemas):
            raise NotACall
        self._name = name
        if self._waiting is not None:
            self._whole_call("".join(self._waiting))

    def _arguments(self, first: str) -> Generator[None, None, None]:
        if first == "{" and self._name:
            self._output.begin(self._name)
            self._cursor.forget()
            yield from ValueReader(self._cursor, self._output.arguments).read()
            self._ended()
            return
        self._waiting = []
        yield from ValueReader(self._cursor, self._waiting.append).read()
        self._waiting = [_object_text("".join(self._waiting))]
        if self._name:
            self._whole_call(self._waiting[0])

    def _whole_call(self, arguments: str) -> None:
        self._output.begin(self._name)
        self._output.arguments(arguments)
        self._ended()

    def _ended(self) -> None:
        self._output.end()
        self._done = True
        self._cursor.record()

    def _short_string(self) -> Generator[None, None, str]:
        pieces = _ShortText()
        yield from ValueReader(self._cursor, pieces.add).string()
        return str(json.loads("".join(pieces.pieces)))


class _ShortText:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._room = 6 * MAX_NAME  # a character may be written as an escape of six

    def add(self, text: str) -> None:
        self._room -= len(text)
        if self._room < 0:
            raise NotACall
        self.pieces.append(text)


def _object_text(value: str) -> str:
    """The arguments of a value that is an object, null, or a string that holds an object."""
    if value.startswith('"'):
        value = converted(json.loads(value)) or ""
    if value == "null":
        return "{}"
    if not value.strip().startswith("{"):
        raise NotACall
    return value


def _ignore(_text: str) -> None:
    """For members that say nothing of the call."""
