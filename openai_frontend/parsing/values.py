"""Converts JSON values as models spell them (JSON, Python, Gemma) to JSON."""

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import TypeAlias

from openai_frontend.parsing.buffer import Cursor, Emit, Markers, NotToolCall

# Parses what follows a backslash and returns its JSON.
ReadEscape = Callable[[Cursor], Generator[None, None, str]]

_BACKSLASH = "\\\\"  # JSON for a backslash that escapes nothing
_SURROGATE = re.compile("[\ud800-\udfff]")
_HEX = frozenset("0123456789abcdefABCDEF")
_NUMBER = re.compile(r"(-?)([0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How values are spelled."""

    quotes: tuple[str, ...]
    words: Mapping[str, str]  # literal -> its JSON
    ends: Mapping[str, Markers]  # quote -> what interrupts the string's plain text
    brackets: Mapping[str, tuple[str, str, str]]  # opening -> closing bracket, and both in JSON
    read_escape: ReadEscape
    bare_keys: bool = False
    trailing_comma: bool = False
    keeps_space: bool = False  # keep white space within the value
    strict_numbers: bool = True


def json_text(text: str) -> str:
    """Escape text for the inside of a JSON string. Lone surrogates become escapes."""
    inside = encode_basestring(text)[1:-1]
    return inside if inside.isascii() else _SURROGATE.sub(_escaped, inside)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"


def json_number(word: str, *, strict: bool) -> str | None:
    """The number in JSON; None if it is not a number. Python allows `.5` and `1.`"""
    found = _NUMBER.fullmatch(word)
    if not found:
        return None
    sign, whole, fraction, exponent = found.groups(default="")
    if not strict and (whole or len(fraction) > 1):
        whole, fraction = whole or "0", fraction + "0" if fraction == "." else fraction
    if not whole or fraction == "." or (whole[0] == "0" and whole != "0"):
        return None
    return sign + whole + fraction + exponent


def _hex_digits(cursor: Cursor, count: int) -> Generator[None, None, str]:
    """The digits after the next letter; "" if there are not enough."""
    digits = (yield from cursor.ahead(1 + count))[1:]
    if not _HEX.issuperset(digits):
        return ""
    if len(digits) < count:
        raise NotToolCall  # the output ended within the escape
    return digits


def _json_escape(cursor: Cursor) -> Generator[None, None, str]:
    char = yield from cursor.peek()
    if not char:
        raise NotToolCall
    if char in '"\\/bfnrt':
        return "\\" + cursor.take(1)
    if char == "u" and (yield from _hex_digits(cursor, 4)):
        return "\\" + cursor.take(5)
    return _BACKSLASH


_PYTHON_LETTERS = {char: "\\" + char for char in '"\\bfnrt'}
_PYTHON_LETTERS |= {"'": "'", "a": "\\u0007", "v": "\\u000b", "\n": ""}
_PYTHON_HEX = {"x": 2, "u": 4, "U": 8}


def _python_escape(cursor: Cursor) -> Generator[None, None, str]:
    char = yield from cursor.peek()
    if not char:
        raise NotToolCall
    if char in _PYTHON_LETTERS:
        cursor.take(1)
        return _PYTHON_LETTERS[char]
    if char in _PYTHON_HEX:
        return (yield from _python_hex(cursor, _PYTHON_HEX[char]))
    digits = yield from cursor.ahead(3)
    octal = digits[: next((i for i, c in enumerate(digits) if c not in "01234567"), len(digits))]
    if octal:
        cursor.take(len(octal))
        return f"\\u{int(octal, 8):04x}"
    return _BACKSLASH


def _python_hex(cursor: Cursor, count: int) -> Generator[None, None, str]:
    digits = yield from _hex_digits(cursor, count)
    if not digits or int(digits, 16) > 0x10FFFF:
        return _BACKSLASH
    cursor.take(1 + count)
    code = int(digits, 16)
    return f"\\u{code:04x}" if code <= 0xFFFF else json_text(chr(code))


_BRACKETS = {"{": ("}", "{", "}"), "[": ("]", "[", "]")}
_JSON_WORDS = {word: word for word in ("true", "false", "null")}

JSON = Dialect(
    quotes=('"',),
    words=_JSON_WORDS,
    ends={'"': Markers('"', "\\")},
    brackets=_BRACKETS,
    read_escape=_json_escape,
    keeps_space=True,
)
PYTHON = Dialect(
    quotes=('"', "'", '"""', "'''"),
    words=_JSON_WORDS | {"True": "true", "False": "false", "None": "null"},
    ends={quote: Markers(quote, "\\") for quote in ('"', "'", '"""', "'''")},
    brackets=_BRACKETS | {"(": (")", "[", "]")},
    read_escape=_python_escape,
    trailing_comma=True,
    strict_numbers=False,
)


def bare_dialect(quote: str) -> Dialect:
    """Gemma's: keys without quotes, strings between two special tokens, no escapes."""
    return Dialect(
        quotes=(quote,),
        words=_JSON_WORDS | {"True": "true", "False": "false", "None": "null"},
        ends={quote: Markers(quote)},
        brackets=_BRACKETS,
        read_escape=_json_escape,  # never called: no end is a backslash
        bare_keys=True,
    )


MAX_DEPTH = 256
_MAX_WORD = 512  # limit in characters of a number, literal or bare key
_WORD = re.compile(r"[\w.+\-]*")

# Each step parses one item and returns the next step; None at the end of the value.
_Step: TypeAlias = "Callable[[], _NextStep]"
_NextStep: TypeAlias = "Generator[None, None, _Step | None]"


# Step -> the letter of its position, outside of strings and within them
_POSITIONS = {
    "_value": "v",
    "_first_element": "f",
    "_element": "k",
    "_colon": "c",
    "_after_value": "a",
}
_IN_STRINGS = {"_value": "V", "_element": "K"}


class ValueReader:
    """Parses one value; raises `NotToolCall` if it is not one."""

    def __init__(self, cursor: Cursor, emit: Emit, dialect: Dialect = JSON) -> None:
        self._cursor = cursor
        self._emit = emit
        self._dialect = dialect
        self._open: list[tuple[str, str]] = []  # closing brackets, as spelled and in JSON
        self._step: _Step | None = self._value
        self._in_string: bool | None = False  # None: within an escape

    def read(self) -> Generator[None, None, None]:
        """Parse the whole value."""
        while self._step is not None:
            self._step = yield from self._step()

    def position(self) -> tuple[str, str] | None:
        """The closing brackets of what is open, and a letter for what the next character belongs to
        (`generation.SegmentEnd.json`). None if it is not between two items of JSON.
        """
        if self._dialect is not JSON or self._in_string is None:
            return None
        name = self._step.__name__ if self._step is not None else ""
        letter = (_IN_STRINGS if self._in_string else _POSITIONS).get(name)
        return None if letter is None else ("".join(closes for closes, _ in self._open), letter)

    def string(self) -> Generator[None, None, None]:
        """Parse only a string."""
        quote = yield from self._cursor.expect(*self._dialect.quotes)
        self._emit('"')
        self._in_string = True
        while (yield from self._string_part(quote)) != quote:
            self._in_string = None
            self._emit((yield from self._dialect.read_escape(self._cursor)))
            self._in_string = True
        self._in_string = False
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
            raise NotToolCall
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
        return self._colon

    def _colon(self) -> _NextStep:
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
            raise NotToolCall
        self._emit(f'"{json_text(self._cursor.take(len(word)))}"')

    def _bare_word(self) -> Generator[None, None, None]:
        word = yield from self._cursor.word(_WORD, _MAX_WORD)
        strict = self._dialect.strict_numbers
        spelled = self._dialect.words.get(word) or json_number(word, strict=strict)
        if spelled is None:
            raise NotToolCall
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
            raise NotToolCall
        self._emit(",")
        return self._element

    def _closed(self) -> "_Step | None":
        self._cursor.take(1)
        self._emit(self._open.pop()[1])
        return self._after_value if self._open else None


def converted(text: str, dialect: Dialect = JSON) -> str | None:
    """A complete text as JSON; None if it is not exactly one value."""
    cursor = Cursor(f"{text} ", ended=True)  # the space terminates a word
    pieces: list[str] = []
    try:
        for _ in ValueReader(cursor, pieces.append, dialect).read():
            return None  # incomplete
        for _ in cursor.skip_space():
            return None
    except NotToolCall:
        return None
    return "".join(pieces) if cursor.at == len(cursor.text) else None
