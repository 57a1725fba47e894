"""Refuses JSON that would hold the event loop while it is read: by its shape, never by its bytes.

A body within the byte limit can still hold a million keys, each of which costs a microsecond or
more in pydantic (9.5 MB of unknown fields took a second). This looks without parsing; what is no
JSON at all is left to the parser.
"""

from openai_frontend.errors import InvalidRequest

MAX_DEPTH = 64
MAX_FIELDS = 256  # of the request itself; all APIs together have fewer
MAX_STRINGS = 65_536  # keys too; a chat of 2,048 messages has about 16,000
MAX_VALUES = 1_048_576  # members of all arrays and objects; OpenAI takes 300,000 tokens at once

_OPENING, _CLOSING = b"[{", b"]}"
_INNERMOST = (b"{:}", b"{::}", b"{:::}", b"{::::}", b"[]")  # without anything of their own inside
_PASSES = 3
_NO_STRUCTURE = bytes(set(range(256)) - set(b"[{]}:"))
_START = 64 * 1024  # where most floods show already


def check_json_size(body: bytes) -> None:
    """Raises InvalidRequest for a body of too many parts. Costs 1 us where there can be none."""
    if len(body) <= MAX_VALUES and not _may_have_many_parts(body):
        return
    if len(body) > 4 * _START:  # a shorter body is not worth two looks
        _check_structure(_without_strings(body[:_START]))
    _check_structure(_without_strings(body))


def _may_have_many_parts(body: bytes) -> bool:
    """Counts what text may contain too, so that most bodies need no closer look."""
    depth = body.count(b"{") + body.count(b"[")
    return depth > MAX_DEPTH or body.count(b'"') > 2 * MAX_FIELDS


def _without_strings(body: bytes) -> bytes:
    """The body's signs and numbers, in which each sign stands for itself."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') > 2 * MAX_STRINGS:
        raise _refusal(f"more than {MAX_STRINGS} strings")
    return b"".join(body.split(b'"')[::2])


def _check_structure(body: bytes) -> None:
    if body.count(b",") > MAX_VALUES:
        raise _refusal(f"more than {MAX_VALUES} values")
    signs = body.translate(None, _NO_STRUCTURE)
    if len(signs) > 4 * MAX_STRINGS:
        raise _refusal(f"more than {2 * MAX_STRINGS} arrays and objects")
    _check_levels(*_without_innermost(signs))


def _without_innermost(signs: bytes) -> tuple[bytes, int]:
    """The signs without most of the innermost arrays and objects, and how many levels that took.

    Whole passes in C: of 2,049 messages nothing is left, and a loop would take 0.6 ms over them.
    """
    for taken in range(_PASSES):
        left = signs
        for part in _INNERMOST:
            left = left.replace(part, b"")
        if not left or left == signs:
            return signs, taken
        signs = left
    return signs, _PASSES


def _check_levels(signs: bytes, taken: int) -> None:
    depth = fields = 0
    for sign in signs:
        if sign in _OPENING:
            depth += 1
            if depth + taken > MAX_DEPTH:
                raise _refusal(f"more than {MAX_DEPTH} levels of nesting")
        elif sign in _CLOSING:
            depth -= 1
        elif depth == 1:
            fields += 1
            if fields > MAX_FIELDS:
                raise _refusal(f"more than {MAX_FIELDS} parameters")


def _refusal(what: str) -> InvalidRequest:
    message = f"We could not parse the JSON body of your request: it has {what}."
    return InvalidRequest(message, code="json_invalid")
