"""Regular expressions for texts within JSON, and what a grammar's text may cost."""

import re

# A count multiplies what it repeats, and so does one around it; 65,536 compile within some seconds.
MAX_EXPANSION = 2**16

# From 128 on xgrammar 0.2.8 writes counts in another way, by which it fails to compile, or allows a
# token that it then does not take, which ends the answer.
MAX_COUNT = 127

_COUNT = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}|~\s*(\d+)(?:\s*\.\.\s*(\d+))?")
# Escapes of characters that JSON escapes too; xgrammar would put the characters themselves.
_LETTERS = {"n": r"\\n", "t": r"\\t", "r": r"\\r", "f": r"\\f", "\\": r"\\\\", '"': r"\\\""}
_RAW = {'"': r"\\\"", "\n": r"\\n", "\t": r"\\t", "\r": r"\\r", "\f": r"\\f"}


def spelled_in_json(pattern: str) -> str:
    """The pattern of a JSON string's inside, where quotes, backslashes and line breaks are
    escapes. Of classes xgrammar itself leaves out what JSON escapes.
    """
    pieces: list[str] = []
    in_class = False
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            following = pattern[at + 1]
            pieces.append(
                char + following if in_class else _LETTERS.get(following, char + following)
            )
            at += 2
            continue
        if char == "[" and not in_class:
            in_class = True
        elif char == "]" and in_class and pattern[at - 1] != "[" and pattern[at - 2 : at] != "[^":
            in_class = False
        pieces.append(char if in_class else _RAW.get(char, char))
        at += 1
    return "".join(pieces)


def counts_too_far(text: str) -> bool:
    """Whether xgrammar must not have it."""
    return any(_count(found) > MAX_COUNT for found in _COUNT.finditer(text))


def check_expansion(text: str) -> None:
    """Raise ValueError for a regular expression or grammar that grows too large when its counts
    are written out: the three largest may stand within one another.
    """
    counts = sorted((_count(found) for found in _COUNT.finditer(text)), reverse=True)
    size = len(text)
    for count in counts[:3]:
        size *= max(count, 1)
    if counts and size > MAX_EXPANSION:
        raise ValueError(
            f"its repetition counts make it too large: its length times its three largest counts "
            f"may be {MAX_EXPANSION}, not {size}"
        )


def _count(found: re.Match[str]) -> int:
    numbers = [int(number[:9]) for number in found.groups() if number]
    return max(numbers, default=1)
