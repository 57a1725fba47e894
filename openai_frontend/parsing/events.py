"""The events that a parser emits, in order, and the buffer that formats write them to."""

import secrets
import string
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ContentText:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """The model's reasoning before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call starts. Calls are numbered from 0 without gaps; id and name come only here."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the call's JSON object. All pieces of an index, joined, are its text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call's arguments end. If not `complete`, the model stopped or made a mistake within them,
    and their text is only the beginning of a JSON object.
    """

    index: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ArgumentsTooLong:
    """The call exceeded the limit on arguments: it has ended, and the parser emits nothing more."""

    index: int


Event = (
    ContentText | ReasoningText | ToolCallStart | ToolCallArguments | ToolCallEnd | ArgumentsTooLong
)


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """The text that the next output continues, if it can be shown before it is parsed: text up to a
    marker, or JSON arguments up to their end, both exactly as the model writes them.
    """

    event: ContentText | ReasoningText | ToolCallArguments  # what it adds to; without text
    markers: tuple[str, ...] = ()  # each may end the text; white space before one is not shown
    json: tuple[str, str] | None = None  # of arguments: what `ValueReader.position` returns
    max_bytes: int | None = None  # limit of the arguments; None: no limit


IdForm = Callable[[str, int], str]  # (function name, call index) -> call id

_ALPHANUMERIC = string.ascii_letters + string.digits
_NOT_IN_NAMES = frozenset("\"'`<>{}[]()\\,;=|")


def openai_id(_name: str, _index: int) -> str:
    """call_ and 24 characters"""
    return f"call_{secrets.token_hex(12)}"


def mistral_id(_name: str, _index: int) -> str:
    """9 letters and digits"""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


def kimi_id(name: str, index: int) -> str:
    """the model's own, functions.NAME:INDEX"""
    return f"functions.{name}:{index}"


def is_name(text: str) -> bool:
    """Whether `text` is a valid function name."""
    return (
        0 < len(text) <= 128
        and text.isprintable()
        and " " not in text
        and _NOT_IN_NAMES.isdisjoint(text)
    )


MAX_ARGUMENTS = 128 * 1024  # per call, in bytes
_NO_TEXT: Mapping[type, "ContentText | ReasoningText"] = {
    kind: kind("") for kind in (ContentText, ReasoningText)
}

TextKind = type[ContentText] | type[ReasoningText]
Schemas = Mapping[str, Mapping[str, Any]]  # function name -> schema of its arguments

_SPACE = " \t\r\n"
_MAX_SPACE = 4096  # limit of white space that waits for what follows it


class ArgumentsLimitExceeded(Exception):  # internal to the parser: it stops parsing
    """A call's arguments exceeded the limit."""


# Passes text to the function as it arrives, and returns what ends it (`buffer.Cursor.before`)
TextReader = Callable[[Callable[[str], None]], Generator[None, None, str]]


class ArgumentsReader(Protocol):
    """Parses one JSON value (`values.ValueReader`)."""

    def read(self) -> Generator[None, None, None]: ...

    def position(self) -> tuple[str, str] | None: ...


class EventBuffer:
    """Merges text into events.

    White space next to a marker belongs to the marker, as chat templates write it. So white space
    at the end of a text waits until it is known what follows.
    """

    def __init__(self, schemas: Schemas, id_form: IdForm, max_arguments: int) -> None:
        self.schemas = schemas
        self.calls = 0
        self.in_reasoning = False
        self.at_start = True  # no text since the latest marker
        self._after_marker = False
        self._events: list[Event] = []
        self._pieces: list[str] = []  # of the event in progress, so that a burst becomes one event
        self._pieces_are: TextKind | None = None  # None: arguments of the open call
        self._written: set[TextKind] = set()
        self._space = ""
        self._space_kind: TextKind = ContentText
        self._space_passes = False  # the white space is too long to hold back
        self._id_form = id_form
        self.max_arguments = max_arguments
        self._room = 0
        self.call_is_open = False
        self._ids: set[str] = set()  # models repeat ids
        self._open_text: tuple[TextKind, tuple[str, ...]] | None = None
        self._json_position: Callable[[], tuple[str, str] | None] | None = None

    def events(self) -> list[Event]:
        """The events since the previous call."""
        self._flush()
        events, self._events = self._events, []
        return events

    def segment(self) -> OpenSegment | None:
        """The text that the next output continues; None if it must be parsed first."""
        if self._json_position is not None:
            position = self._json_position()
            if position is None:
                return None
            event = ToolCallArguments(self.calls, "")
            return OpenSegment(event, json=position, max_bytes=self._room)
        if self._open_text is None or self.at_start or self._space or self._space_passes:
            return None
        kind, literals = self._open_text
        return OpenSegment(_NO_TEXT[kind], literals) if kind in self._written else None

    def text_until(
        self, before: TextReader, ends: tuple[str, ...], kind: TextKind
    ) -> Generator[None, None, str]:
        """Write the text that `before` reads; returns its end, one of `ends`, which is not
        consumed.
        """
        self._open_text = (kind, ends)
        end = yield from before(partial(self.write, kind))
        self._open_text = None
        return end

    def json_arguments(self, reader: ArgumentsReader) -> Generator[None, None, None]:
        """Write the open call's arguments, which `reader` passes to `arguments`."""
        self._json_position = reader.position
        try:
            yield from reader.read()
        finally:
            self._json_position = None

    def marker(self) -> None:
        """Note that a marker was here."""
        self._space = ""
        self._space_passes = False
        self._after_marker = True
        self.at_start = True

    def write(self, kind: TextKind, text: str) -> None:
        """Add text for the user."""
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
        """End the output: pending white space belongs to the text after all."""
        if self._space and not (self.at_start and self._after_marker):
            self._add(self._space_kind, self._space)
        self._space = ""

    def begin(self, name: str, id_of_model: str | None = None) -> None:
        """Start a call. The model may have given it an id."""
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
        """Add a piece of the open call's arguments."""
        fits = truncate_to_bytes(text, self._room)
        if fits:
            self._add(None, fits)
        if len(fits) < len(text):
            self.too_long()
        self._room -= len(fits) if fits.isascii() else len(fits.encode("utf-8", "surrogatepass"))

    def too_long(self) -> None:
        """End the open call and stop parsing."""
        index = self.calls
        self.end(complete=False)
        self._events.append(ArgumentsTooLong(index))
        raise ArgumentsLimitExceeded

    def end(self, *, complete: bool = True) -> None:
        """End the open call."""
        self._flush()
        self._events.append(ToolCallEnd(self.calls, complete))
        self.call_is_open = False
        self.calls += 1
        self.marker()

    def abandon(self) -> None:
        """The format gave up: end an open call as incomplete."""
        if self.call_is_open:
            self.end(complete=False)


def truncate_to_bytes(text: str, room: int) -> str:
    """The longest prefix of the text that fits into `room` bytes."""
    if len(text) * 4 <= room:
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    return text if len(encoded) <= room else encoded[:room].decode("utf-8", "ignore")
