"""Regular expressions for texts within JSON, and what a grammar's text may cost."""

import re
from collections.abc import Iterator

# A count multiplies what it repeats, and so does one around it; 65,536 compile within some seconds.
MAX_EXPANSION = 2**16

# From 128 on xgrammar 0.2.8 writes counts in another way, by which it fails to compile, or allows a
# token that it then does not take, which ends the answer.
MAX_COUNT = 127

# In strings of bounded length xgrammar takes any control character but line breaks for text.
LENGTH = re.compile('"m(in|ax)Length"')

# Formats that xgrammar 0.2.8 holds in part only: it writes quotes, backslashes and line breaks into
# pointers, the 31st of June, a 60th second anywhere, and numbers that begin with 0 into addresses.
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
# Escapes of characters that JSON escapes too; xgrammar would put the characters themselves.
_LETTERS = {"n": r"\\n", "t": r"\\t", "r": r"\\r", "f": r"\\f", "\\": r"\\\\", '"': r"\\\""}
_RAW = {'"': r"\\\"", "\n": r"\\n", "\t": r"\\t", "\r": r"\\r", "\f": r"\\f"}


def escape_for_json(pattern: str) -> str:
    """The pattern of a JSON string's inside, where quotes, backslashes and line breaks are
    escapes. Of classes xgrammar itself leaves out what JSON escapes.
    """
    return "".join(_optional_groups([_spelled(part) for part in _PART.findall(pattern)]))


# An escape, a class, the beginning of a group, or one character.
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?::|P?<\w+>)|.", re.DOTALL)


def _spelled(part: str) -> str:
    if len(part) == 2 and part.startswith("\\"):
        return _LETTERS.get(part[1], part)
    return _RAW.get(part, part)


def _optional_groups(parts: list[str]) -> Iterator[str]:
    """`(a+b)?` as `(|a+b)`: within JSON strings xgrammar 0.2.8 takes `b` for the former, for it
    enters the group's loop from outside.
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
                if parts[i + 2 : i + 3] == ["?"]:  # which of two matches is taken is all the same
                    parts[i + 2] = ""
    return iter(parts)


def repeat_bound_exceeded(text: str) -> bool:
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
