"""Regular expressions for strings within JSON, and limits on the size of grammars."""

import re

from openai_frontend.engines.vllm.grammars.code_points import complement, intersection, of_text
from openai_frontend.engines.vllm.grammars.regex_determinism import is_deterministic
from openai_frontend.engines.vllm.grammars.regex_tree import Node, Repeat, parts_of

# A repetition count multiplies what it repeats, and nested counts multiply each other; 65,536
# compile in a few seconds.
MAX_EXPANSION = 2**16

# From 128 on, xgrammar 0.2.8 encodes counts differently: it fails to compile, or allows a token
# that it then rejects, which ends the output.
MAX_COUNT = 127

# The characters that an answer may have outside JSON: the others are not in xgrammar's vocabulary.
WRITABLE = complement(((0, 8), (0xB, 0xC), (0xE, 0x1F)))

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


def check_writable(text: str) -> None:
    """Raises ValueError for a text that no answer can contain outside JSON."""
    unwritable = intersection(of_text(text), complement(WRITABLE))
    if unwritable:
        raise ValueError(f"no answer can contain the control character U+{unwritable[0][0]:04X}")


def xgrammar_reads(expression: Node) -> bool:
    """Whether xgrammar enforces exactly this expression."""
    return is_deterministic(expression) and largest_count(expression) <= MAX_COUNT


def largest_count(expression: Node) -> int:
    """The largest repetition count in the expression."""
    repeats = (part for part in parts_of(expression) if isinstance(part, Repeat))
    return max((max(each.least, each.most or 0) for each in repeats), default=0)


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
