"""Turns a model's output into events, piece by piece. A complete parse is `feed` and then `finish`,
so streaming and non-streaming cannot differ.
"""

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from openai_frontend.parsing.buffer import Cursor, Markers, NotToolCall, markers
from openai_frontend.parsing.events import (
    MAX_ARGUMENTS,
    ArgumentsLimitExceeded,
    ContentText,
    Event,
    EventBuffer,
    IdForm,
    OpenSegment,
    ReasoningText,
    TextKind,
)
from openai_frontend.parsing.family import Family, Reasoning, Syntax


class Parser(Protocol):
    """The parser of one output. Never raises because of what a model wrote."""

    @property
    def in_reasoning(self) -> bool:
        """Whether the next text would be reasoning; used to count reasoning tokens."""

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        """Return the events of the next piece of output. The ids are of the same tokens."""

    def finish(self) -> list[Event]:
        """Return the events that were held back. Called once, at the end of the output."""


class FamilyParser:
    """Parses text, not token ids. Without tools, what looks like a call is text."""

    def __init__(
        self,
        family: Family,
        tools: Mapping[str, Mapping[str, Any]]
        | None = None,  # function name -> schema of its arguments
        *,
        reasoning_open: bool | None = None,  # None: the family's default
        new_id: IdForm | None = None,  # None: the family's own format
        max_arguments: int = MAX_ARGUMENTS,
    ) -> None:
        syntax = family.tools
        self._syntax = syntax if syntax and (tools or syntax.frames_output) else None
        self._reasoning = family.reasoning
        self._endings = family.endings
        self._late_ends: tuple[str, ...] = ()  # of reasoning that calls have ended
        self._cursor = Cursor()
        self._output = EventBuffer(tools or {}, new_id or family.id_form, max_arguments)
        if family.reasoning is not None:
            inside = family.reasoning.starts_inside
            self._output.in_reasoning = inside if reasoning_open is None else reasoning_open
        self._steps = self._run()
        self._running = True
        next(self._steps)

    @property
    def in_reasoning(self) -> bool:
        return self._output.in_reasoning

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        if text and self._running:
            self._cursor.append(text)
            self._advance()
        return self._output.events()

    def segment(self) -> OpenSegment | None:
        """The text that the next output continues, if all output so far is in the events."""
        cursor = self._cursor
        if not self._running or cursor.at < len(cursor.text):
            return None
        return self._output.segment()

    def truncate(self) -> None:
        """Say, before `finish`, that the model had not ended the output."""
        self._cursor.truncated = True

    def finish(self) -> list[Event]:
        if self._running:
            self._cursor.ended = True
            self._advance()
        return self._output.events()

    def _advance(self) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self._running = False

    def _run(self) -> Generator[None, None, None]:
        yield
        try:
            if self._output.in_reasoning:
                self._output.marker()
                yield from self._read_reasoning()
            while (yield from self._read_content()):
                yield from self._read_reasoning()
        except ArgumentsLimitExceeded:
            return
        self._output.finish()

    def _read_content(self) -> Generator[None, None, bool]:
        """Parse text and calls. True if reasoning starts, False at the end."""
        passed = self._endings + self._late_ends
        known = markers(*self._call_starts(), *self._reasoning_start(), *passed)
        yield from self._read_bare_call()
        while marker := (yield from self._text_before(known, ContentText)):
            if marker in passed:
                self._pass_marker(marker)
            elif marker not in self._reasoning_start():
                yield from self._read_calls(marker, ContentText)
            elif self._output.at_start or (self._reasoning and self._reasoning.anywhere):
                self._pass_marker(marker)
                return True
            else:
                self._output.write(ContentText, self._cursor.take(len(marker)))
        return False

    def _read_reasoning(self) -> Generator[None, None, None]:
        self._output.in_reasoning = True
        if self._reasoning is not None:
            yield from self._read_until_over(self._reasoning)
        self._output.in_reasoning = False

    def _read_until_over(self, reasoning: Reasoning) -> Generator[None, None, None]:
        calls = self._call_starts() if reasoning.ended_by_calls else ()
        self._late_ends = ()
        ends = (reasoning.end, *reasoning.other_ends)
        known = markers(*ends, reasoning.start, *calls, *self._endings)
        while marker := (yield from self._text_before(known, ReasoningText)):
            if marker in calls:
                if (yield from self._read_calls(marker, ReasoningText)):
                    self._late_ends = (reasoning.end,)
                    return
            elif marker == reasoning.start and not self._output.at_start:
                self._output.write(ReasoningText, self._cursor.take(len(marker)))
            else:
                self._pass_marker(marker)
                if marker in ends:
                    return

    def _text_before(self, known: Markers, kind: TextKind) -> Generator[None, None, str]:
        return self._output.text_until(partial(self._cursor.before, known), known.literals, kind)

    def _pass_marker(self, marker: str) -> None:
        self._cursor.take(len(marker))
        self._output.marker()

    def _read_bare_call(self) -> Generator[None, None, None]:
        if self._syntax is None or not self._syntax.bare_starts:
            return
        yield from self._cursor.skip_space(partial(self._output.write, ContentText))
        if (yield from self._cursor.peek()) in self._syntax.bare_starts:
            yield from self._read_calls("", ContentText)

    def _read_calls(self, marker: str, kind: TextKind) -> Generator[None, None, bool]:
        """Parse calls, starting at a marker. What turns out not to be a call is text, and so is
        what was consumed in search of another. True if there was a call.
        """
        if self._syntax is None:
            return False
        calls = self._output.calls
        self._cursor.record()
        begins_line = (
            marker in self._syntax.line_starts
        )  # a line start's bracket belongs to the call
        self._cursor.take(len(marker) - begins_line)
        try:
            yield from self._syntax.read(self._cursor, self._output, marker)
        except NotToolCall:
            if self._output.call_is_open and not self._cursor.ended:
                yield from self._read_rest_of_call(self._syntax)
            self._output.abandon()
        unused = self._cursor.unread()
        self._output.write(kind, unused)
        called = self._output.calls > calls
        if called and self._cursor.ended and not unused.strip():
            self._cursor.drop()  # the output ended within a value or an end marker
        return called

    def _read_rest_of_call(self, syntax: Syntax) -> Generator[None, None, None]:
        """Pass on what a model wrote instead of valid arguments, up to the end of the call.

        The caller sees what is wrong with the call, and no user sees its markers.
        """
        known = markers(*syntax.ends, *self._call_starts(), *self._endings)
        end = yield from self._cursor.before(known, self._output.arguments, pieces_of_ends=False)
        if end not in syntax.ends:
            return
        self._cursor.take(len(end))
        while end:
            self._cursor.record()
            yield from self._cursor.skip_space()
            end = yield from self._cursor.accept(*syntax.ends)

    def _call_starts(self) -> tuple[str, ...]:
        return self._syntax.starts + self._syntax.line_starts if self._syntax else ()

    def _reasoning_start(self) -> tuple[str, ...]:
        return (self._reasoning.start,) if self._reasoning else ()


class ParserPipeline:
    """One parser for reasoning; another finds calls in what the first reports as content."""

    def __init__(self, reasoning: Parser, tools: Parser) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def in_reasoning(self) -> bool:
        return self._reasoning.in_reasoning

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        events = self._reasoning.feed(text, token_ids)
        if events == [ContentText(text)]:
            return self._tools.feed(text, token_ids)
        return self._passed_on(events)

    def finish(self) -> list[Event]:
        return self._passed_on(self._reasoning.finish()) + self._tools.finish()

    def _passed_on(self, events: list[Event]) -> list[Event]:
        """Content goes through the second parser; token ids of a part of a piece are unknown."""
        passed: list[Event] = []
        for event in events:
            passed += self._tools.feed(event.text) if isinstance(event, ContentText) else [event]
        return passed
