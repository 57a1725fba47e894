"""Bounds a message before it is parsed, which is one call in C that holds the interpreter.

8 million empty inputs in 16 MB would take 0.4 s and 700 MB. Raw tensors are only copied: 16 MB take
9 ms.
"""

from collections.abc import Iterator, Mapping

from openai_frontend.errors import InvalidRequest

MAX_FIELDS = 8192  # of a message and the messages within it, apart from packed elements
MAX_FIELD_BYTES = 1024 * 1024  # of each but a raw tensor: a million packed integers take 3 ms

# Number of a field -> those of the fields within it that are counted too
_Nested = Mapping[int, "_Nested"]
_INPUTS, _OUTPUTS, _CONTENTS, _RAW = 5, 6, 5, 7
_INFER: _Nested = {_INPUTS: {_CONTENTS: {}}, _OUTPUTS: {}}
_SETTINGS, _VALUE = 1, 2  # of a TraceSettingRequest and of the entries of its map
_TRACE: _Nested = {_SETTINGS: {_VALUE: {}}}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; groups (3, 4) are not used
_FIXED = {_FIXED64: 8, _FIXED32: 4}


_ADVICE = " Send long tensors as raw_input_contents."  # for requests that have them


class MalformedRpcMessage(ValueError):
    """The bytes are not a message."""


def check_infer_request(data: bytes) -> None:
    """Check a ModelInferRequest. Raises MalformedRpcMessage, or InvalidRequest if it has too many
    fields or too long ones.
    """
    _check(data, (0, len(data)), _INFER, MAX_FIELDS, advice=_ADVICE, raw=_RAW)


def check_trace_request(data: bytes) -> None:
    """Check a TraceSettingRequest, whose settings are lists. Raises as `check_infer_request`."""
    _check(data, (0, len(data)), _TRACE, MAX_FIELDS, advice="")


def check_message(data: bytes) -> None:
    """Check any other request, whose fields may be of any length."""
    for count, _ in enumerate(_fields(data, 0, len(data)), 1):
        if count > MAX_FIELDS:
            raise _too_many("")


def _check(
    data: bytes, span: tuple[int, int], nested: _Nested, left: int, *, advice: str, raw: int = 0
) -> int:
    """Return how many fields may still follow."""
    for number, begin, stop in _fields(data, *span):
        left -= 1
        if left < 0:
            raise _too_many(advice)
        within = nested.get(number)
        if within is not None:
            left = _check(data, (begin, stop), within, left, advice=advice)
        elif stop - begin > MAX_FIELD_BYTES and number != raw:
            raise InvalidRequest(
                f"The message has a field of more than {MAX_FIELD_BYTES} bytes.{advice}"
            )
    return left


def _too_many(advice: str) -> InvalidRequest:
    return InvalidRequest(f"The message has more than {MAX_FIELDS} fields.{advice}")


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of each field's value. Raises MalformedRpcMessage."""
    while at < end:
        tag, at = _varint(data, at, end)
        kind = tag & 7
        if kind == _BYTES:
            length, at = _varint(data, at, end)
            stop = at + length
        elif kind == _VARINT:
            stop = _varint(data, at, end)[1]
        elif kind in _FIXED:
            stop = at + _FIXED[kind]
        else:
            raise MalformedRpcMessage(f"wire type {kind}")
        if stop > end:
            raise MalformedRpcMessage("a field ends behind the message")
        yield tag >> 3, at, stop
        at = stop


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number and the place after it."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise MalformedRpcMessage("a number does not end")
