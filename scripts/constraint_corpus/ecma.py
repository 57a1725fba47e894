"""ECMA 262's regular expressions, which JSON Schema's `pattern` has, in those of `regex`."""

from functools import cache
from typing import Any

import regex

_SPACE = r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": _SPACE}
_ANCHORS = {"^": r"\A", "$": r"\Z", ".": r"[^\n\r\u2028\u2029]"}
_WORD = "[A-Za-z0-9_]"
_BOUNDARY = f"(?:(?<={_WORD})(?!{_WORD})|(?<!{_WORD})(?={_WORD}))"
_NO_BOUNDARY = f"(?:(?<={_WORD})(?={_WORD})|(?<!{_WORD})(?!{_WORD}))"
_ESCAPES = {"/": "/", "-": r"\-", "b": _BOUNDARY, "B": _NO_BOUNDARY}
# Named groups, code points, control characters and counts that both spell differently
_SPELLINGS = (
    (regex.compile(r"\\k<(\w+)>"), r"(?P=\1)"),
    (regex.compile(r"\\u\{([0-9A-Fa-f]+)\}"), lambda found: f"\\U{int(found[1], 16):08x}"),
    (regex.compile(r"\\c([A-Za-z])"), lambda found: f"\\x{ord(found[1]) % 32:02x}"),
    (regex.compile(r"\{(?=,)"), r"\{"),
)


@cache
def compiled(pattern: str) -> Any:
    """Raises `regex.error` if the expression has no meaning there."""
    for spelling, other in _SPELLINGS:
        pattern = spelling.sub(other, pattern)
    return regex.compile(_translated(pattern), flags=regex.VERSION0)


def _translated(pattern: str) -> str:
    written, at = "", 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\" and at + 1 < len(pattern):
            written += _escape(pattern[at + 1])
            at += 2
        elif character == "[":
            piece, at = _class(pattern, at)
            written += piece
        else:
            named = pattern[at : at + 3] == "(?<" and pattern[at + 3 : at + 4] not in ("=", "!")
            written += "(?P<" if named else _ANCHORS.get(character, character)
            at += 3 if named else 1
    return written


def _escape(letter: str) -> str:
    if letter in _CLASSES:
        return f"[{_CLASSES[letter]}]"
    if letter.lower() in _CLASSES:
        return f"[^{_CLASSES[letter.lower()]}]"
    return _ESCAPES.get(letter, f"\\{letter}")


def _class(pattern: str, begin: int) -> tuple[str, int]:
    """A class in brackets, and the position after it."""
    at = begin + 1
    negated = pattern[at : at + 1] == "^"
    at += negated
    members, outside = "", ""
    while at < len(pattern) and pattern[at] != "]":
        if pattern[at] != "\\" or at + 1 >= len(pattern):
            members += f"\\{pattern[at]}" if pattern[at] in "[&~|^" else pattern[at]
            at += 1
            continue
        letter = pattern[at + 1]
        if letter in _CLASSES:
            members += _CLASSES[letter]
        elif letter.lower() in _CLASSES:
            outside += f"|[^{_CLASSES[letter.lower()]}]"
        else:
            members += "/" if letter == "/" else f"\\{letter}"
        at += 2
    if not members and not outside:
        return (r"[\s\S]" if negated else r"(?!)"), at + 1
    inside = (f"[{members}]" if members else r"(?!)") + outside
    return (f"(?:(?!{inside})[\\s\\S])" if negated else f"(?:{inside})"), at + 1
