"""Two parsers as one, where reasoning and tool calls are read by different ones."""

from collections.abc import Sequence

from openai_frontend.parsing.events import ContentText, Event
from openai_frontend.parsing.parser import Parser


class Chained:
    """The first tells reasoning apart; the second finds calls in what the first says is content."""

    def __init__(self, reasoning: Parser, tools: Parser) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def in_reasoning(self) -> bool:
        """See `Parser`."""
        return self._reasoning.in_reasoning

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        """See `Parser`."""
        events = self._reasoning.feed(text, token_ids)
        if events == [ContentText(text)]:
            return self._tools.feed(text, token_ids)
        return self._passed_on(events)

    def finish(self) -> list[Event]:
        """See `Parser`."""
        return self._passed_on(self._reasoning.finish()) + self._tools.finish()

    def _passed_on(self, events: list[Event]) -> list[Event]:
        """Content goes through the second; the ids of a part of a piece are not known."""
        passed: list[Event] = []
        for event in events:
            passed += self._tools.feed(event.text) if isinstance(event, ContentText) else [event]
        return passed
