"""Regular expressions for strings within JSON, and limits on the size of grammars."""

import re
from collections.abc import Iterator

# A repetition count multiplies what it repeats, and nested counts multiply each other; 65,536
# compile in a few seconds.
MAX_EXPANSION = 2**16

# From 128 on, xgrammar 0.2.8 encodes counts differently: it fails to compile, or allows a token
# that it then rejects, which ends the output.
MAX_COUNT = 127

# In strings of bounded length, xgrammar accepts any control character except line breaks.
LENGTH = re.compile('"m(in|ax)Length"')

# Formats that xgrammar 0.2.8 enforces only partly: it writes quotes, backslashes and line breaks
# into pointers, the 31st of June, a 60th second anywhere, and numbers with leading zeros in
# addresses.
_YEAR = r"(\d{3}[1-9]|\d{2}[1-9]0|\d[1-9]00|[1-9]000)"
_LEAP_YEAR = r"(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    r"(02-(0[1-9]|1\d|2[0-8])|(0[469]|11)-(0[1-9]|[12]\d|30)"
    r"|(0[13578]|1[02])-(0[1-9]|[12]\d|3[01]))"
)
_DATE = f"({_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_MINUTES = r"([01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_MINUTES}:[0-5]\d(\.\d{{1,9}})?(Z|[+\-]{_MINUTES})"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_POINTER = r"(/([ !#-.0-\[\]-}]|~[01])*)*"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d{{0,8}})(#|{_POINTER})",
}

_COUNT = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}|~\s*(\d+)(?:\s*\.\.\s*(\d+))?")
# Escapes of characters that JSON escapes too; xgrammar would write the characters themselves.
_LETTERS = {"n": r"\\n", "t": r"\\t", "r": r"\\r", "f": r"\\f", "\\": r"\\\\", '"': r"\\\""}
_RAW = {'"': r"\\\"", "\n": r"\\n", "\t": r"\\t", "\r": r"\\r", "\f": r"\\f"}


def escape_for_json(pattern: str) -> str:
    """The pattern for the inside of a JSON string, with quotes, backslashes and line breaks as
    escapes.

    In character classes, xgrammar itself excludes what JSON escapes.
    """
    return "".join(_optional_groups([_spelled(part) for part in _PART.findall(pattern)]))


# An escape, a character class, the start of a group, or one character.
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?::|P?<\w+>)|.", re.DOTALL)


def _spelled(part: str) -> str:
    if len(part) == 2 and part.startswith("\\"):
        return _LETTERS.get(part[1], part)
    return _RAW.get(part, part)


def _optional_groups(parts: list[str]) -> Iterator[str]:
    """Rewrite `(a+b)?` as `(|a+b)`: for the former, xgrammar 0.2.8 accepts `b` within JSON strings,
    because it enters the group's loop from outside.
    """
    opened: list[int] = []
    for i, part in enumerate(parts):
        if part.startswith("("):
            opened.append(i)
        elif part == ")" and opened:
            at = opened.pop()
            if parts[i + 1 : i + 2] == ["?"]:
                parts[at] += "|"
                parts[i + 1] = ""
                if parts[i + 2 : i + 3] == ["?"]:  # lazy or greedy makes no difference here
                    parts[i + 2] = ""
    return iter(parts)


def repeat_bound_exceeded(text: str) -> bool:
    """Whether the text has a repetition count that xgrammar cannot handle."""
    return any(_count(found) > MAX_COUNT for found in _COUNT.finditer(text))


def check_expansion(text: str) -> None:
    """Raises ValueError for a regex or grammar that becomes too large when its counts are expanded.
    The three largest counts may be nested.
    """
    counts = sorted((_count(found) for found in _COUNT.finditer(text)), reverse=True)
    size = len(text)
    for count in counts[:3]:
        size *= max(count, 1)
    if counts and size > MAX_EXPANSION:
        raise ValueError(
            "its repetition counts make it too large: the length times the three largest counts "
            f"is {size}, the limit {MAX_EXPANSION}"
        )


def _count(found: re.Match[str]) -> int:
    numbers = [int(number[:9]) for number in found.groups() if number]
    return max(numbers, default=1)
