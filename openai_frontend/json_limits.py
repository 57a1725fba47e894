"""Rejects JSON that would block the event loop while it is parsed: too many values or levels.

A body within the byte limit can hold a million keys, each of which costs a microsecond or more in
pydantic (9.5 MB of unknown fields took a second). The check does not parse; the parser reports
invalid JSON. The same pass over a long body finds integers that orjson would round.
"""

from collections.abc import Generator, Iterator

MAX_DEPTH = 64
MAX_FIELDS = 256  # at the top level; all APIs together have fewer
MAX_STRINGS = 65_536  # keys too; a chat of 2,048 messages has about 16,000
MAX_VALUES = 1_048_576  # members of all arrays and objects; OpenAI takes 300,000 tokens at once

_OPENING, _CLOSING = b"[{", b"]}"
_INNERMOST = (b"{:}", b"{::}", b"{:::}", b"{::::}", b"[]")  # with scalars only
_REMOVED = b"\0"  # until the end of a pass, which so removes one level, not one per pattern
_PASSES = 4
_NO_STRUCTURE = bytes(set(range(256)) - set(b"[{]}:"))
_WINDOW = 64 * 1024  # bytes: 0.25 ms if every other one is escaped
_WINDOWS_A_STEP = 3
_SIGNS_A_STEP = 16 * 1024  # 0.8 ms
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG, _LONG_NEGATIVE = b"0" * 20, b"-" + b"0" * 19  # integers that may need more than 64 bits
_LONG_FRACTION = b"." + _LONG  # of a shortest decimal, such as 0.00012345678901234567


class TooManyParts(ValueError):
    """The JSON has more parts of one kind than any request needs; the message names the kind."""


def check_json_size(text: bytes) -> None:
    """Raises TooManyParts. Takes 1 us for short texts."""
    if may_have_many_parts(text):
        for _ in size_checks(text):
            pass


def size_checks(text: bytes) -> Generator[None, None, bool]:
    """`check_json_size` in steps of less than a millisecond, with other work between them.

    Returns whether a number may be an integer beyond 64 bits, which orjson rounds to a decimal.
    """
    if not may_have_many_parts(text):
        return _may_have_long_integer(text)
    strings = values = 0
    signs = tail = b""
    has_long_integer = False
    for window, (outside, quotes) in enumerate(_windows(text)):
        strings, values = strings + quotes, values + outside.count(b",")
        if strings > 2 * MAX_STRINGS:
            raise TooManyParts(f"more than {MAX_STRINGS} strings")
        if values > MAX_VALUES:
            raise TooManyParts(f"more than {MAX_VALUES} values")
        signs += outside.translate(None, _NO_STRUCTURE)
        if len(signs) > 4 * MAX_STRINGS:
            raise TooManyParts(f"more than {2 * MAX_STRINGS} arrays and objects")
        if window == 0:  # most attacks show here
            yield from _level_checks(signs)
        has_long_integer = has_long_integer or _may_have_long_integer(tail + outside)
        tail = outside[-len(_LONG) :]
        if window % _WINDOWS_A_STEP == 0:
            yield
    if window > 0:
        yield from _level_checks(signs)
    return has_long_integer


def _may_have_long_integer(text: bytes) -> bool:
    """Whether it has so many digits in a row. Takes 1 us per KiB, 15 times less than a regex."""
    digits = text.translate(_DIGITS)
    if _LONG not in digits and _LONG_NEGATIVE not in digits:
        return False
    digits = digits.replace(_LONG_FRACTION, b"")
    return _LONG in digits or _LONG_NEGATIVE in digits


def check_json_depth(text: bytes) -> None:
    """Raises TooManyParts only for nesting, for files of an operator with many entries."""
    signs = b"".join(outside.translate(None, _NO_STRUCTURE) for outside, _ in _windows(text))
    for _ in _level_checks(signs, max_fields=len(text)):
        pass


def may_have_many_parts(body: bytes) -> bool:
    """A cheap upper bound, which counts characters inside strings too. Counting takes longer than
    the whole check where strings are long.
    """
    return (
        len(body) > _WINDOW
        or body.count(b"{") + body.count(b"[") > MAX_DEPTH
        or (len(body) > 2 * MAX_FIELDS and body.count(b'"') > 2 * MAX_FIELDS)
    )


def _windows(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the part of each window outside strings, and its number of quotes."""
    start, within = 0, 0
    while start < len(body):
        end = start + _WINDOW
        window = body[start:end]
        # The next window must not start with an escaped byte
        if window.endswith(b"\\") and (len(window) - len(window.rstrip(b"\\"))) % 2:
            end += 1
            window = body[start:end]
        if b'"' not in window:  # as most of an image's base64: nothing to copy
            yield b"" if within else window, 0
            start = end
            continue
        if b"\\" in window:
            window = window.replace(b"\\\\", b"").replace(b'\\"', b"")
        pieces = window.split(b'"')
        yield b"".join(pieces[within::2]), len(pieces) - 1
        start, within = end, (within + len(pieces) - 1) % 2


def _without_innermost(signs: bytes) -> Generator[None, None, tuple[bytes, int]]:
    """Remove most innermost arrays and objects; return the rest and the number of levels removed.

    Replacing runs in C: it removes all of 2,049 messages, for which a loop would take 0.6 ms.
    """
    for taken in range(_PASSES):
        left = signs
        for part in _INNERMOST:
            left = left.replace(part, _REMOVED)
            if len(left) > _SIGNS_A_STEP:
                yield
        if left == signs:
            return signs, taken
        signs = left.replace(_REMOVED, b"")
    return signs, _PASSES


def _level_checks(signs: bytes, max_fields: int = MAX_FIELDS) -> Iterator[None]:
    signs, taken = yield from _without_innermost(signs)
    depth = fields = 0
    for at, sign in enumerate(signs, 1):
        if sign in _OPENING:
            depth += 1
            if depth + taken > MAX_DEPTH:
                raise TooManyParts(f"more than {MAX_DEPTH} levels of nesting")
        elif sign in _CLOSING:
            depth -= 1
        elif depth == 1:
            fields += 1
            if fields > max_fields:
                raise TooManyParts(f"more than {max_fields} parameters")
        if at % _SIGNS_A_STEP == 0:
            yield
