"""Reads one value in any dialect and writes it as JSON while it comes. Each character is looked
at once; how deep values nest is bounded.
"""

import re
from collections.abc import Callable, Generator
from typing import TypeAlias

from openai_frontend.parsing.cursor import Cursor, Emit, NotACall
from openai_frontend.parsing.dialects import JSON, Dialect, json_number, json_text

MAX_DEPTH = 256
_MAX_WORD = 512  # characters of a number, a literal or a bare key
_WORD = re.compile(r"[\w.+\-]*")

# Each step reads one thing and says what must come next; None where the value is whole.
_Step: TypeAlias = "Callable[[], _NextStep]"
_NextStep: TypeAlias = "Generator[None, None, _Step | None]"


class ValueReader:
    """Reads one value from the cursor; raises `NotACall` where it is none."""

    def __init__(self, cursor: Cursor, emit: Emit, dialect: Dialect = JSON) -> None:
        self._cursor = cursor
        self._emit = emit
        self._dialect = dialect
        self._open: list[tuple[str, str]] = []  # closing brackets, as spelled and in JSON

    def read(self) -> Generator[None, None, None]:
        """Reads all of it."""
        step: _Step | None = self._value
        while step is not None:
            step = yield from step()

    def string(self) -> Generator[None, None, None]:
        """Reads a string alone."""
        quote = yield from self._cursor.expect(*self._dialect.quotes)
        self._emit('"')
        while (yield from self._string_part(quote)) != quote:
            self._emit((yield from self._dialect.read_escape(self._cursor)))
        self._emit('"')

    def _string_part(self, quote: str) -> Generator[None, None, str]:
        ends = self._dialect.ends[quote]
        return self._cursor.stream(ends, lambda text: self._emit(json_text(text)))

    def _space(self) -> Generator[None, None, str]:
        yield from self._cursor.skip_space(self._emit if self._dialect.keeps_space else None)
        return (yield from self._cursor.peek())

    def _value(self) -> _NextStep:
        char = yield from self._space()
        if char in self._dialect.brackets:
            return self._opened(self._cursor.take(1))
        if self._begins_string(char):
            yield from self.string()
        else:
            yield from self._bare_word()
        return self._after_value

    def _begins_string(self, char: str) -> bool:
        return any(char == quote[0] for quote in self._dialect.quotes)

    def _opened(self, bracket: str) -> _Step:
        if len(self._open) == MAX_DEPTH:
            raise NotACall
        closes, opens_json, closes_json = self._dialect.brackets[bracket]
        self._open.append((closes, closes_json))
        self._emit(opens_json)
        return self._first_element

    def _first_element(self) -> _NextStep:
        char = yield from self._space()
        if char == self._open[-1][0]:
            return self._closed()
        return self._element

    def _element(self) -> _NextStep:
        if self._open[-1][1] == "]":
            return self._value
        yield from self._key()
        yield from self._space()
        yield from self._cursor.expect(":")
        self._emit(":")
        return self._value

    def _key(self) -> Generator[None, None, None]:
        char = yield from self._space()
        if self._begins_string(char):
            yield from self.string()
            return
        word = yield from self._cursor.word(_WORD, _MAX_WORD)
        if not (word and self._dialect.bare_keys):
            raise NotACall
        self._emit(f'"{json_text(self._cursor.take(len(word)))}"')

    def _bare_word(self) -> Generator[None, None, None]:
        word = yield from self._cursor.word(_WORD, _MAX_WORD)
        strict = self._dialect.strict_numbers
        spelled = self._dialect.words.get(word) or json_number(word, strict=strict)
        if spelled is None:
            raise NotACall
        self._cursor.take(len(word))
        self._emit(spelled)

    def _after_value(self) -> _NextStep:
        if not self._open:
            return None
        if (yield from self._space()) == self._open[-1][0]:
            return self._closed()
        yield from self._cursor.expect(",")
        if self._dialect.trailing_comma:
            return self._element_or_end
        self._emit(",")
        return self._element

    def _element_or_end(self) -> _NextStep:
        char = yield from self._space()
        if char == self._open[-1][0]:
            return self._closed()
        if not char:
            raise NotACall
        self._emit(",")
        return self._element

    def _closed(self) -> "_Step | None":
        self._cursor.take(1)
        self._emit(self._open.pop()[1])
        return self._after_value if self._open else None


def converted(text: str, dialect: Dialect = JSON) -> str | None:
    """A whole text as JSON; None where it is not one value."""
    cursor = Cursor(f"{text} ", ended=True)  # the space ends a word
    pieces: list[str] = []
    try:
        for _ in ValueReader(cursor, pieces.append, dialect).read():
            return None  # it waits for more, and there is none
        for _ in cursor.skip_space():
            return None
    except NotACall:
        return None
    return "".join(pieces) if cursor.at == len(cursor.text) else None
