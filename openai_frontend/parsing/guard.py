"""Guards against failures of external parsers and limits the arguments that they emit."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from openai_frontend.errors import caught
from openai_frontend.parsing.events import (
    MAX_ARGUMENTS,
    ArgumentsTooLong,
    ContentText,
    Event,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    truncate_to_bytes,
)
from openai_frontend.parsing.parser import Parser

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_logged: set[str] = set()  # names of parsers whose failure has been logged


class ParserGuard:
    """If the parser raises, its open call ends and the rest of the output is content. If arguments
    exceed the limit, the output ends.
    """

    def __init__(self, name: str, make: Callable[[], Parser]) -> None:
        self._name = name
        self._pending: list[str] = []  # text since the latest event
        self._open_call: int | None = None
        self._room = MAX_ARGUMENTS
        self._over = False
        self._failure = caught(self._stop_parsing)
        self._parser = self._run(make)  # None: it failed

    @property
    def in_reasoning(self) -> bool:
        parser = self._parser
        return parser is not None and bool(self._run(lambda: bool(parser.in_reasoning)))

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        if not self._over:
            self._pending.append(text)
        return self._read(lambda parser: parser.feed(text, token_ids))

    def finish(self) -> list[Event]:
        return self._read(lambda parser: parser.finish())

    def _read(self, read: Callable[[Parser], list[Event]]) -> list[Event]:
        if self._over:
            return []
        if (parser := self._parser) is not None:
            events = self._run(lambda: self._checked(read(parser)))
            if events is not None:
                return events
        return self._end_of_call() + self._rest()

    def _rest(self) -> list[Event]:
        """The text since the latest event, as content."""
        text = "".join(self._pending)
        self._pending.clear()
        return [ContentText(text)] if text else []

    def _run(self, external: Callable[[], Result]) -> Result | None:
        """The result; None if the parser fails, and from then on it is not used."""
        with self._failure:
            return external()
        return None

    def _stop_parsing(self, error: Exception) -> None:
        self._parser = None
        if self._name not in _logged:
            _logged.add(self._name)
            message = "parser %s failed; the rest of the output is content"
            logger.error(message, self._name, exc_info=error)

    def _checked(self, events: list[Event]) -> list[Event]:
        for at, event in enumerate(events):
            if isinstance(event, ToolCallStart):
                self._open_call = event.index
                self._room = MAX_ARGUMENTS
            elif isinstance(event, ToolCallEnd):
                self._open_call = None
            elif isinstance(event, ToolCallArguments):
                fits = truncate_to_bytes(event.text, self._room)
                if len(fits) < len(event.text):
                    return events[:at] + self._too_long(event.index, fits)
                self._room -= len(fits.encode("utf-8", "surrogatepass"))
        if events:
            self._pending.clear()
        return events

    def _too_long(self, index: int, fits: str) -> list[Event]:
        self._over = True
        self._pending.clear()
        last: list[Event] = [ToolCallArguments(index, fits)] if fits else []
        return [*last, ToolCallEnd(index, complete=False), ArgumentsTooLong(index)]

    def _end_of_call(self) -> list[Event]:
        index, self._open_call = self._open_call, None
        return [] if index is None else [ToolCallEnd(index, complete=False)]
