"""Reads regular expressions: the syntax on which ECMA-262, Python and Rust agree, or which only one
of them has and the others reject. Raises ValueError for the rest, with the reason.
"""

import re
import sys
from collections.abc import Mapping
from typing import NoReturn

from openai_frontend.engines.vllm.grammars import code_points
from openai_frontend.engines.vllm.grammars.code_points import (
    CharacterClass,
    Ranges,
    exactly,
    of_text,
    ranges_of,
)
from openai_frontend.engines.vllm.grammars.regex_tree import (
    EMPTY,
    Anchor,
    Lookahead,
    Node,
    characters,
    choice,
    repeat,
    sequence,
)

MAX_DEPTH = 100  # nested groups
_FEW_RANGES = 32

_COUNT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_UP_TO = re.compile(r"\{,\d+\}")
_SIGNS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_NAMED = re.compile(r"\(\?P?<[A-Za-z_$][\w$]*>")
_COMMENT = re.compile(r"\(\?#[^)]*\)")
_HEX = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}"
    r"|U([0-9A-Fa-f]{8}))"
)
_OCTAL = re.compile(r"\\(0[0-7]{0,2}|[1-3][0-7]{2})")
_CONTROL = re.compile(r"\\c([A-Za-z])")
_PROPERTY = re.compile(r"\\([pP])(?:\{(\^?)([\w =:.-]+)\}|([A-Z]))")
_LETTERS: Mapping[str, str] = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_UNSUPPORTED = {
    "(?<=": "lookbehind",
    "(?<!": "lookbehind",
    "(?>": "an atomic group",
    "(?P=": "a backreference",
    "(?(": "a conditional group",
}
_ANCHORS = {"^": True, r"\A": True, "$": False, r"\Z": False, r"\z": False}


def parse(pattern: str) -> Node:
    """The tree of the pattern. Raises ValueError if it is invalid, or not supported."""
    parser = _Parser(pattern)
    tree = parser.alternatives(0)
    if parser.rest():
        raise ValueError("unbalanced parenthesis ')'")
    return tree


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._forbids = False  # within a negative lookahead

    def rest(self) -> str:
        """The next character; empty at the end."""
        return self._text[self._at : self._at + 1]

    def alternatives(self, depth: int) -> Node:
        """Up to the end of the group, which is left."""
        if depth > MAX_DEPTH:
            raise ValueError(f"groups are nested more than {MAX_DEPTH} levels deep")
        flags = self._flags
        options, parts = [], list[Node]()
        while self.rest() not in ("", ")"):
            if self._takes("|"):
                options.append(sequence(parts))
                parts = []
            else:
                parts.append(self._term(depth))
        self._flags = flags
        return choice([*options, sequence(parts)])

    def _takes(self, text: str) -> bool:
        taken = self._text.startswith(text, self._at)
        self._at += len(text) * taken
        return taken

    def _found(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _term(self, depth: int) -> Node:
        start = self._at
        node = self._atom(depth)
        counted = self._counts()
        if counted is None:
            return node
        if self._text[start : self._at][:1] in ("^", "$") or isinstance(node, Anchor | Lookahead):
            raise ValueError("a repetition of an assertion is not supported")
        if self._takes("+"):
            raise ValueError("a possessive repetition is not supported")
        self._takes("?")  # lazy: the same texts match
        if self.rest() and (self.rest() in "*+?" or self._counts() is not None):
            raise ValueError("a repetition of a repetition is not supported")
        least, most = counted
        if most is not None and least > most:
            raise ValueError("a repetition's bounds are in the wrong order")
        return repeat(node, least, most)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, bounds in _SIGNS.items():
            if self._takes(sign):
                return bounds
        if _UP_TO.match(self._text, self._at):
            raise ValueError("'{,n}' is ambiguous: write '{0,n}'")
        found = self._found(_COUNT)
        if found is None:
            return None
        least, comma, most = found.groups()
        if len(least) > 9 or len(most or "") > 9:
            raise ValueError("a repetition count is too large")
        if comma and not most:
            return int(least), None
        return int(least), int(most or least)

    def _atom(self, depth: int) -> Node:
        for text, start in _ANCHORS.items():
            if self._takes(text):
                return Anchor(start)
        first = self.rest()
        if first == "(":
            return self._group(depth)
        if first == "[":
            return self._set()
        if first == ".":
            self._at += 1
            dot = code_points.ANY if "s" in self._flags else code_points.NOT_A_LINE_END
            return characters(self._ranges(dot))
        if first in "*+?":
            raise ValueError(f"nothing to repeat before '{first}'")
        if first == "{" and self._counts() is not None:
            raise ValueError("nothing to repeat before '{'")
        return self._characters(self._escape(within_class=False) or self._literal())

    def _literal(self) -> CharacterClass:
        self._at += 1
        return exactly(of_text(self._text[self._at - 1]))

    def _ranges(self, given: CharacterClass) -> Ranges:
        """Ranges that a text may contain in every dialect, or must not contain in any. For `\\w`
        these are hundreds of ranges, so no text contains another character outside ASCII either.
        """
        if not self._forbids:
            return given.sure
        few = len(given.possible) <= _FEW_RANGES
        return given.possible if few else ranges_of([*given.possible, (0x80, sys.maxunicode)])

    def _characters(self, given: CharacterClass) -> Node:
        if "i" in self._flags:
            given = code_points.without_case(self._ranges(given))
        return characters(code_points.without_surrogates(self._ranges(given)))

    def _group(self, depth: int) -> Node:
        for text, name in _UNSUPPORTED.items():
            if self._text.startswith(text, self._at):
                raise ValueError(f"{name} is not supported")
        if self._found(_COMMENT):
            return EMPTY
        looks = "!" if self._takes("(?!") else "=" if self._takes("(?=") else ""
        if not looks and not self._found(_NAMED):
            if found := self._found(_FLAGS):
                return self._flagged(found, depth)
            if self._text.startswith("(?", self._at):
                raise ValueError(f"'{self._text[self._at : self._at + 3]}' is not supported")
            self._at += 1
        forbids = self._forbids
        self._forbids = forbids or looks == "!"
        inner = self._closed(depth)
        self._forbids = forbids
        return Lookahead(inner, looks == "!") if looks else inner

    def _closed(self, depth: int) -> Node:
        inner = self.alternatives(depth + 1)
        if not self._takes(")"):
            raise ValueError("missing ')', unterminated group (parenthesis)")
        return inner

    def _flagged(self, found: re.Match[str], depth: int) -> Node:
        added, removed, end = found.groups()
        if unknown := {*added, *(removed or "")} - {"i", "s", "u", "a"}:
            raise ValueError(f"the flag '{min(unknown)}' is not supported")
        flags = self._flags
        self._flags = (flags | {*added}) - {*(removed or "")}
        if end == ")":
            return EMPTY  # to the end of the enclosing group
        inner = self._closed(depth)
        self._flags = flags
        return inner

    def _set(self) -> Node:
        self._at += 1
        negated = self._takes("^")
        if self.rest() == "]":
            raise ValueError("an empty character class is ambiguous")
        found = []
        while not self._takes("]"):
            found.append(self._set_range())
        whole = code_points.union(found)
        if "i" in self._flags:
            both = code_points.without_case(whole.sure)
            whole = CharacterClass(
                both.sure, code_points.ranges_of([*both.possible, *whole.possible])
            )
        ranges = self._ranges(whole.negated() if negated else whole)
        return characters(code_points.without_surrogates(ranges))

    def _set_range(self) -> CharacterClass:
        low = self._set_member()
        if not self._text.startswith("-", self._at) or self._text[self._at + 1 :][:1] in ("]", ""):
            return low
        if not _is_single(low):
            return low  # as in `[\w-.]`, the hyphen is a character
        self._at += 1
        high = self._set_member()
        if not _is_single(high):
            raise ValueError("a range's end is not a character")
        (first, _), (_, last) = low.sure[0], high.sure[0]
        if first > last:
            raise ValueError("a range's ends are in the wrong order")
        return exactly(((first, last),))

    def _set_member(self) -> CharacterClass:
        if not self.rest():
            raise ValueError("missing ']', unterminated character class")
        return self._escape(within_class=True) or self._literal()

    def _escape(self, *, within_class: bool) -> CharacterClass | None:
        """The next escape; None if there is none."""
        if self.rest() != "\\":
            return None
        if found := self._found(_HEX):
            return self._of_hex(found)
        if found := self._found(_OCTAL):
            return exactly(of_text(chr(int(found[1], 8))))
        if found := self._found(_CONTROL):
            return exactly(of_text(chr(ord(found[1]) % 32)))
        if found := self._found(_PROPERTY):
            named = code_points.unicode_property(found[3] or found[4])
            return named.negated() if (found[1] == "P") != bool(found[2]) else named
        return self._letter_escape(within_class=within_class)

    def _of_hex(self, found: re.Match[str]) -> CharacterClass:
        code = int(next(filter(None, found.groups())), 16)
        if 0xD800 <= code < 0xDC00 and found[3]:
            low = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})").match(self._text, self._at)
            if low is not None:
                self._at = low.end()
                code = 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        if code > 0x10FFFF:
            raise ValueError("a code point is too large")
        return exactly(((code, code),))

    def _letter_escape(self, *, within_class: bool) -> CharacterClass:
        letter = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if letter in _LETTERS:
            return exactly(of_text(_LETTERS[letter]))
        if letter and letter in "dDwWsS":
            return code_points.shorthand(letter)
        if letter == "b" and within_class:
            return exactly(of_text("\b"))
        if not letter:
            raise ValueError("it ends with a backslash")
        if letter.isalnum():
            _refuse_escape(letter)
        return exactly(of_text(letter))


def _is_single(given: CharacterClass) -> bool:
    return len(given.sure) == 1 and given.sure[0][0] == given.sure[0][1]


def _refuse_escape(letter: str) -> NoReturn:
    if letter in "bB":
        raise ValueError(f"the word boundary '\\{letter}' is not supported")
    if letter in "123456789k":
        raise ValueError("a backreference is not supported")
    raise ValueError(f"the escape '\\{letter}' is not supported")
