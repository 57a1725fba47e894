"""The ways in which models spell a JSON value: JSON itself, Python, Gemma. No state."""

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring

from openai_frontend.parsing.cursor import Cursor, NotACall
from openai_frontend.parsing.markers import Markers

# Reads what follows a backslash and answers with its JSON.
ReadEscape = Callable[[Cursor], Generator[None, None, str]]

_BACKSLASH = "\\\\"  # in JSON, for one that escapes nothing and so stands for itself
_SURROGATE = re.compile("[\ud800-\udfff]")
_HEX = frozenset("0123456789abcdefABCDEF")
_NUMBER = re.compile(r"(-?)([0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How values are spelled."""

    quotes: tuple[str, ...]
    words: Mapping[str, str]  # a word -> its JSON
    ends: Mapping[str, Markers]  # a quote -> what interrupts the string's plain text
    brackets: Mapping[str, tuple[str, str, str]]  # opens -> closes, and both in JSON
    read_escape: ReadEscape
    bare_keys: bool = False
    trailing_comma: bool = False
    keeps_space: bool = False  # the value's own white space is kept
    strict_numbers: bool = True


def json_text(text: str) -> str:
    """Plain text as the inside of a JSON string; half a surrogate pair stays an escape."""
    inside = encode_basestring(text)[1:-1]
    return inside if inside.isascii() else _SURROGATE.sub(_escaped, inside)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"


def json_number(word: str, *, strict: bool) -> str | None:
    """The number in JSON; None where it is none. Python may leave out a zero: `.5`, `1.`"""
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
    """The digits behind the next letter; "" where there are not as many."""
    digits = (yield from cursor.ahead(1 + count))[1:]
    if not _HEX.issuperset(digits):
        return ""
    if len(digits) < count:
        raise NotACall  # the output ended within the escape
    return digits


def _json_escape(cursor: Cursor) -> Generator[None, None, str]:
    char = yield from cursor.peek()
    if not char:
        raise NotACall
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
        raise NotACall
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
    """Gemma's: keys without quotes, strings between two special tokens, nothing escaped."""
    return Dialect(
        quotes=(quote,),
        words=_JSON_WORDS | {"True": "true", "False": "false", "None": "null"},
        ends={quote: Markers(quote)},
        brackets=_BRACKETS,
        read_escape=_json_escape,  # never asked: no end is a backslash
        bare_keys=True,
    )
