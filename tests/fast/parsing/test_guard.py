"""A parser from elsewhere may fail; the answer goes on."""

from collections.abc import Sequence

import pytest

from openai_frontend.parsing import guard
from openai_frontend.parsing.events import (
    MAX_ARGUMENTS,
    ContentText,
    Event,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.parsing.guard import ParserGuard
from tests.fast.parsing.samples import answer


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


def test_no_failure() -> None:
    """The events of a parser that does not fail are passed on."""

    parser = ParserGuard("well", Fragile)

    assert parser.in_reasoning
    assert parser.feed("a") + parser.finish() == [ContentText("1a"), ContentText("1")]


def test_a_failure_makes_the_rest_content() -> None:
    """So is the text at which it failed; reasoning has ended."""

    parser = ParserGuard("feed", Fragile)

    events = parser.feed("!") + parser.feed("b") + parser.feed("") + parser.finish()

    assert events == [ContentText("!"), ContentText("b")]
    assert not parser.in_reasoning


def test_held_back_text_is_not_lost() -> None:
    """Text for which the parser had not yet emitted events becomes content."""

    parser = ParserGuard("held", lambda: Fragile(breaks_at_end=True))

    assert parser.feed("a") + parser.feed("~") == [ContentText("1a")]
    assert parser.feed("~") + parser.finish() == [ContentText("~~")]


@pytest.mark.parametrize("end", ["!", ""])
def test_failure_ends_an_open_call(end: str) -> None:
    """It is incomplete, whether the parser failed in it or after it."""

    parser = ParserGuard("open", lambda: Fragile(breaks_at_end=True))

    events = parser.feed("<") + parser.feed(end) + parser.finish()

    ends = [event for event in events if isinstance(event, ToolCallEnd)]
    assert ends == [ToolCallEnd(0, complete=False)]


def test_failure_after_a_complete_call() -> None:
    """The call stays complete and does not end twice."""

    parser = ParserGuard("ended", Fragile)

    events = parser.feed("<") + parser.feed(">") + parser.feed("!") + parser.finish()

    assert events[-2:] == [ToolCallEnd(0), ContentText("!")]


@pytest.mark.parametrize("piece", [1000, MAX_ARGUMENTS + 7])
def test_long_arguments_end_the_output(piece: int) -> None:
    """The limit is the same as for our own parsers, in any pieces; then nothing is parsed."""

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


def test_limit_is_per_call() -> None:
    """Several calls of half the limit are allowed."""

    class Calls(Fragile):
        def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
            index = int(text)
            half = ToolCallArguments(index, "x" * (MAX_ARGUMENTS // 2))
            return [ToolCallStart(index, "id", "now"), half, ToolCallEnd(index)]

    parser = ParserGuard("calls", Calls)

    found = answer([event for index in "0123" for event in parser.feed(index)])
    assert [len(call.arguments) for call in found.calls] == [MAX_ARGUMENTS // 2] * 4


def test_parser_that_cannot_be_created(caplog: pytest.LogCaptureFixture) -> None:
    """Everything is content, and the log says why, once per name."""

    guard._logged.discard("never")

    for _ in range(2):
        parser = ParserGuard("never", lambda: Fragile(broken=True))  # type: ignore[call-arg]
        assert parser.feed("a") + parser.finish() == [ContentText("a")]
    assert [record.getMessage() for record in caplog.records] == [
        "parser never failed; the rest of the output is content"
    ]


def test_parser_without_in_reasoning() -> None:
    """A parser without this property counts as failed."""

    parser = ParserGuard("mute", lambda: object())  # type: ignore[arg-type,return-value]

    assert not parser.in_reasoning
    assert parser.feed("a") == [ContentText("a")]
