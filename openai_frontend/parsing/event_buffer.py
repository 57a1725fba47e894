"""Collects what the formats find as events, and a call's arguments as JSON."""

from collections.abc import Generator, Mapping
from typing import Any

from openai_frontend.parsing.buffer import Cursor, Markers
from openai_frontend.parsing.events import (
    ArgumentsTooLong,
    ContentText,
    Event,
    IdForm,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.parsing.schema_types import Types, is_text, typed_json
from openai_frontend.parsing.values import json_text

MAX_ARGUMENTS = 128 * 1024  # bytes of one call's arguments

TextKind = type[ContentText] | type[ReasoningText]
Schemas = Mapping[str, Mapping[str, Any]]  # a function's name -> the schema of its arguments

_SPACE = " \t\r\n"
_MAX_SPACE = 4096  # white space that may wait for what comes after it


class ArgumentsLimitExceeded(Exception):  # never leaves the parser: it ends the reading
    """A call's arguments passed the limit."""


class EventBuffer:
    """White space that touches a marker is a part of the marker, as chat templates write it; so
    space at the end of a text waits until it is known what comes next.
    """

    def __init__(self, schemas: Schemas, id_form: IdForm, max_arguments: int) -> None:
        self.schemas = schemas
        self.calls = 0
        self.in_reasoning = False
        self.at_start = True  # no text since the last marker
        self._after_marker = False
        self._events: list[Event] = []
        self._pieces: list[str] = []  # of the event that is being made, so that a burst is one
        self._pieces_are: TextKind | None = None  # None: arguments of the open call
        self._written: set[TextKind] = set()
        self._space = ""
        self._space_kind: TextKind = ContentText
        self._space_passes = False  # the run of white space is too long to wait
        self._id_form = id_form
        self.max_arguments = max_arguments
        self._room = 0
        self.call_is_open = False
        self._ids: set[str] = set()  # models repeat theirs

    def events(self) -> list[Event]:
        """All that came since the last time."""
        self._flush()
        events, self._events = self._events, []
        return events

    def marker(self) -> None:
        """A marker was here."""
        self._space = ""
        self._space_passes = False
        self._after_marker = True
        self.at_start = True

    def write(self, kind: TextKind, text: str) -> None:
        """Text for a reader, as it is."""
        if self.at_start and self._after_marker and kind not in self._written:
            text = text.lstrip(_SPACE)
        body = text.rstrip(_SPACE)
        if body:
            self._add(kind, self._space + body)
            self._written.add(kind)
            self._space = ""
            self._space_passes = self.at_start = False
        if len(body) < len(text):
            self._hold(kind, text[len(body) :])

    def _hold(self, kind: TextKind, space: str) -> None:
        self._space += space
        self._space_kind = kind
        if self._space_passes or len(self._space) > _MAX_SPACE:
            self._add(kind, self._space)
            self._space = ""
            self._space_passes = True
            self.at_start = False

    def _add(self, kind: TextKind | None, text: str) -> None:
        if kind is not self._pieces_are:
            self._flush()
            self._pieces_are = kind
        self._pieces.append(text)

    def _flush(self) -> None:
        if not self._pieces:
            return
        text = self._pieces[0] if len(self._pieces) == 1 else "".join(self._pieces)
        self._pieces.clear()
        kind = self._pieces_are
        self._events.append(kind(text) if kind else ToolCallArguments(self.calls, text))

    def finish(self) -> None:
        """The output ends here: space behind a text belongs to it after all."""
        if self._space and not (self.at_start and self._after_marker):
            self._add(self._space_kind, self._space)
        self._space = ""

    def begin(self, name: str, id_of_model: str | None = None) -> None:
        """A call begins; the model may have given it an id."""
        self.marker()
        self.in_reasoning = False
        self.call_is_open = True
        self._room = self.max_arguments
        self._flush()
        if not id_of_model or id_of_model in self._ids:
            id_of_model = self._id_form(name, self.calls)
        self._ids.add(id_of_model)
        self._events.append(ToolCallStart(self.calls, id_of_model, name))

    def arguments(self, text: str) -> None:
        """A piece of the open call's arguments."""
        fits = fitting(text, self._room)
        if fits:
            self._add(None, fits)
        if len(fits) < len(text):
            self.too_long()
        self._room -= len(fits) if fits.isascii() else len(fits.encode("utf-8", "surrogatepass"))

    def too_long(self) -> None:
        """Ends the open call, and the reading with it."""
        index = self.calls
        self.end(complete=False)
        self._events.append(ArgumentsTooLong(index))
        raise ArgumentsLimitExceeded

    def end(self, *, complete: bool = True) -> None:
        """The open call ends."""
        self._flush()
        self._events.append(ToolCallEnd(self.calls, complete))
        self.call_is_open = False
        self.calls += 1
        self.marker()

    def abandon(self) -> None:
        """Whatever was being read cannot go on: a call that is open ends as it stands."""
        if self.call_is_open:
            self.end(complete=False)


def fitting(text: str, room: int) -> str:
    """The characters from the text's beginning that fit into so many bytes."""
    if len(text) * 4 <= room:
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    return text if len(encoded) <= room else encoded[:room].decode("utf-8", "ignore")


class ArgumentsWriter:
    """`{"key":value,...}`, in the order in which they come."""

    def __init__(self, output: EventBuffer) -> None:
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

    def __init__(self, output: EventBuffer) -> None:
        self.pieces: list[str] = []
        self._output = output
        self._room = output.max_arguments

    def add(self, text: str) -> None:
        self.pieces.append(text)
        self._room -= len(text)
        if self._room < 0:
            self._output.too_long()
