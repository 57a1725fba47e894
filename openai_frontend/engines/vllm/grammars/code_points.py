"""Sets of characters, as ranges of code points, and the classes that regular expressions name.

Dialects differ: `\\d` is ASCII in ECMA-262 and Unicode in Python. A class is therefore a pair of
sets: the characters that are in it in every dialect, and those that are in it in some dialect. Only
the first is allowed in an answer, so it matches whatever reads the expression; a negation exchanges
them.
"""

import functools
import sys
from collections.abc import Iterable
from typing import NamedTuple

Ranges = tuple[tuple[int, int], ...]  # sorted, disjoint, not adjacent; both ends included

_MAX = sys.maxunicode
_SURROGATES = (0xD800, 0xDFFF)  # never in UTF-8


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """The union of ranges in any order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """All other characters."""
    edges = [
        -1,
        *(edge for low, high in _with_surrogates(ranges) for edge in (low, high)),
        _MAX + 1,
    ]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return tuple((end + 1, start - 1) for end, start in pairs if end + 1 < start)


def _with_surrogates(ranges: Ranges) -> Ranges:
    return ranges_of([*ranges, _SURROGATES])


def without_surrogates(ranges: Ranges) -> Ranges:
    first, last = _SURROGATES
    if any(low <= last and high >= first for low, high in ranges):
        return complement(complement(ranges))
    return ranges


def intersection(one: Ranges, other: Ranges) -> Ranges:
    return complement(ranges_of([*complement(one), *complement(other)]))


def of_text(characters: str) -> Ranges:
    """The set of these characters."""
    return ranges_of((ord(each), ord(each)) for each in characters)


class CharacterClass(NamedTuple):
    """Characters that are in the class in every dialect, and in some dialect."""

    sure: Ranges
    possible: Ranges

    def negated(self) -> "CharacterClass":
        return CharacterClass(complement(self.possible), complement(self.sure))


def exactly(ranges: Ranges) -> CharacterClass:
    """A class on which all dialects agree."""
    return CharacterClass(ranges, ranges)


def union(classes: Iterable[CharacterClass]) -> CharacterClass:
    given = list(classes)
    return CharacterClass(
        ranges_of(pair for each in given for pair in each.sure),
        ranges_of(pair for each in given for pair in each.possible),
    )


ALL = complement(())
DIGITS = ((0x30, 0x39),)
_WORD = (*DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_BLANKS = of_text("\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000")
_SPACE = ranges_of([*_BLANKS, (0x2000, 0x200A)])
# Python's separators, Unicode's next line, ECMA-262's byte order mark, a space until Unicode 6.3
_SPACE_IN_SOME = ranges_of([*_SPACE, (0x1C, 0x1F), *of_text("\x85\ufeff\u180e")])
_LINE_ENDS = of_text("\n\r\u2028\u2029")

ANY = exactly(ALL)
NOT_A_LINE_END = CharacterClass(complement(_LINE_ENDS), complement(of_text("\n")))


def shorthand(letter: str) -> CharacterClass:
    """The class of `\\d`, `\\w`, `\\s` and of their negations in upper case."""
    if letter.isupper():
        return shorthand(letter.lower()).negated()
    if letter == "s":
        return CharacterClass(_SPACE, _SPACE_IN_SOME)
    if letter == "d":
        return CharacterClass(DIGITS, _matching(r"\p{Nd}"))
    return CharacterClass(_WORD, _matching(r"[\p{Alphabetic}\p{M}\p{N}\p{Pc}\p{Join_Control}]"))


def unicode_property(name: str) -> CharacterClass:
    """The class of `\\p{name}`. Raises ValueError for an unknown name."""
    import regex

    try:
        return exactly(_matching(rf"\p{{{name}}}"))
    except regex.error:
        raise ValueError(f"'\\p{{{name}}}' is unknown") from None


@functools.cache
def _matching(expression: str) -> Ranges:
    """The characters that match; about 10 ms."""
    import regex

    characters = _every_character()
    runs = regex.finditer(f"(?:{expression})+", characters)
    found = ranges_of((ord(characters[i.start()]), ord(characters[i.end() - 1])) for i in runs)
    return without_surrogates(found)


@functools.cache
def _every_character() -> str:
    return "".join(map(chr, (*range(_SURROGATES[0]), *range(_SURROGATES[1] + 1, _MAX + 1))))


def without_case(ranges: Ranges) -> CharacterClass:
    """The characters that equal one of the set if case does not matter."""
    if not ranges:
        return exactly(ranges)
    letters = "".join(chr(i) for low, high in ranges for i in range(low, min(high, 0x7F) + 1))
    sure = ranges_of([*ranges, *of_text(letters.swapcase())])
    listed = "".join(rf"\U{low:08x}-\U{high:08x}" for low, high in ranges)
    return CharacterClass(sure, ranges_of([*sure, *_matching(f"(?i:[{listed}])")]))
