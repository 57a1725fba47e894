"""A parser from elsewhere may fail; the answer goes on."""

from collections.abc import Sequence

import pytest

from openai_frontend.parsing import guard
from openai_frontend.parsing.event_buffer import MAX_ARGUMENTS
from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.parsing.guard import ParserGuard
from tests.parsing.samples import answer


class Fragile:
    """Begins a call by `<`, ends it by `>`, holds `~` back, and breaks at `!` and, where told, at
    its end.
    """

    def __init__(self, *, breaks_at_end: bool = False) -> None:
        self.in_reasoning = True
        self._breaks_at_end = breaks_at_end

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        if text == "~":
            return []
        if text == "<":
            return [ToolCallStart(0, "id", "now"), ToolCallArguments(0, '{"a')]
        if text == ">":
            return [ToolCallArguments(0, '": 1}'), ToolCallEnd(0)]
        return [ContentText(str(1 // (text != "!")) + text)]

    def finish(self) -> list[Event]:
        return [ContentText(str(1 // (not self._breaks_at_end)))]


def test_all_is_well() -> None:
    """What does not fail is passed on."""

    parser = ParserGuard("well", Fragile)

    assert parser.in_reasoning
    assert parser.feed("a") + parser.finish() == [ContentText("1a"), ContentText("1")]


def test_a_failure_makes_the_rest_content() -> None:
    """Also the text at which it failed; reasoning is over."""

    parser = ParserGuard("feed", Fragile)

    events = parser.feed("!") + parser.feed("b") + parser.feed("") + parser.finish()

    assert events == [ContentText("!"), ContentText("b")]
    assert not parser.in_reasoning


def test_what_was_held_back_is_not_lost() -> None:
    """Text of which the parser had said nothing before it failed is content."""

    parser = ParserGuard("held", lambda: Fragile(breaks_at_end=True))

    assert parser.feed("a") + parser.feed("~") == [ContentText("1a")]
    assert parser.feed("~") + parser.finish() == [ContentText("~~")]


@pytest.mark.parametrize("end", ["!", ""])
def test_an_open_call_ends(end: str) -> None:
    """It is not complete, whether the parser failed in it or after it."""

    parser = ParserGuard("open", lambda: Fragile(breaks_at_end=True))

    events = parser.feed("<") + parser.feed(end) + parser.finish()

    ends = [event for event in events if isinstance(event, ToolCallEnd)]
    assert ends == [ToolCallEnd(0, complete=False)]


def test_a_call_that_has_ended_does_not_end_again() -> None:
    """It is complete."""

    parser = ParserGuard("ended", Fragile)

    events = parser.feed("<") + parser.feed(">") + parser.feed("!") + parser.finish()

    assert events[-2:] == [ToolCallEnd(0), ContentText("!")]


@pytest.mark.parametrize("piece", [1000, MAX_ARGUMENTS + 7])
def test_arguments_that_are_too_long_end_the_answer(piece: int) -> None:
    """At the limit that our own parsers have, however they come; then nothing is read."""

    class Endless(Fragile):
        def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
            return [ToolCallArguments(0, text)] if text != "<" else super().feed(text)

    parser = ParserGuard("endless", Endless)
    events = parser.feed("<")
    for _ in range(MAX_ARGUMENTS // piece + 2):
        events += parser.feed("é" * piece)
    events += parser.finish()

    found = answer(events)
    assert found.too_long
    assert MAX_ARGUMENTS - 1 <= len(found.calls[0].arguments.encode()) <= MAX_ARGUMENTS
    assert found.order[-2:] == ["ToolCallEnd", "ArgumentsTooLong"]


def test_each_call_has_the_limit_for_itself() -> None:
    """Calls of half the limit may be many."""

    class Calls(Fragile):
        def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
            index = int(text)
            half = ToolCallArguments(index, "x" * (MAX_ARGUMENTS // 2))
            return [ToolCallStart(index, "id", "now"), half, ToolCallEnd(index)]

    parser = ParserGuard("calls", Calls)

    found = answer([event for index in "0123" for event in parser.feed(index)])
    assert [len(call.arguments) for call in found.calls] == [MAX_ARGUMENTS // 2] * 4


def test_one_that_cannot_be_made(caplog: pytest.LogCaptureFixture) -> None:
    """All is content, and the log says why, once for each name."""

    guard._logged.discard("never")

    for _ in range(2):
        parser = ParserGuard("never", lambda: Fragile(broken=True))  # type: ignore[call-arg]
        assert parser.feed("a") + parser.finish() == [ContentText("a")]
    assert [record.getMessage() for record in caplog.records] == [
        "parser never failed; the rest of the output is content"
    ]


def test_one_that_does_not_say_whether_it_reasons() -> None:
    """It cannot be relied on."""

    parser = ParserGuard("mute", lambda: object())  # type: ignore[arg-type,return-value]

    assert not parser.in_reasoning
    assert parser.feed("a") == [ContentText("a")]
