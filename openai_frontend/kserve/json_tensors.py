"""Tensors as JSON arrays. Does not parse JSON.

Converts long tensors in short steps, because callers run it in a thread beside an event loop.
"""

import codecs
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NoReturn

import orjson

from openai_frontend.kserve import binary_tensors
from openai_frontend.kserve.datatypes import (
    BYTES,
    Datatype,
    as_numbers,
    check_size,
    element_count,
    reject,
)

_STEP = 16 * 1024  # elements converted in one step: 0.5 ms
_LARGEST_FP32 = (2 - 2**-23) * 2.0**127
_INFINITY = float("inf")

# JSON types for each datatype. 1.0 is not an integer, and true is not a number.
_JSON_TYPES: dict[str | None, set[type]] = {"?": {bool}, "f": {int, float}, "d": {int, float}}
_INTEGER: set[type] = {int}


def decode(tensor: str, datatype: Datatype, shape: Sequence[int], data: Any) -> bytes:
    """The tensor's raw bytes. `data` is a flat list in row-major order, or nested lists.

    Raises InvalidRequest with the tensor's name.
    """
    count = element_count(tensor, shape)
    values = _flat(tensor, data)
    if len(values) != count:
        reject(
            tensor, f"its data has {len(values)} elements, but its shape {list(shape)} has {count}"
        )
    if datatype is BYTES:
        return b"".join(_texts(tensor, part) for part in parts(values))
    if datatype.code is None:
        reject(tensor, f"{datatype.name} cannot be sent as JSON; use binary data")
    if datatype.code == "?":
        return b"".join(_bools(tensor, part) for part in parts(values))
    return _numbers(tensor, datatype, values)


def _flat(tensor: str, data: Any) -> list[Any]:
    """The innermost elements of equally nested lists."""
    if not isinstance(data, list):
        reject(tensor, "its data must be an array")
    values: list[Any] = data
    while values and any(type(value) is list for value in values[:1]):
        if set(map(type, values)) != {list} or len(set(map(len, values))) > 1:
            reject(tensor, "its data is ragged: nested arrays differ in length")
        values = list(chain.from_iterable(values))
    return values


def parts(values: Any) -> Iterator[list[Any]]:
    """Steps of a list, or of a repeated field of a message, whose slices are lists."""
    for start in range(0, len(values), _STEP):
        yield values[start : start + _STEP]


def _texts(tensor: str, part: list[Any]) -> bytes:
    _check_types(tensor, BYTES.name, part, {str})
    return b"".join(len(text).to_bytes(4, "little") + text for text in map(str.encode, part))


def _bools(tensor: str, part: list[Any]) -> bytes:
    _check_types(tensor, "BOOL", part, {bool})
    return bytes(part)


def _numbers(tensor: str, datatype: Datatype, values: list[Any]) -> bytes:
    code = str(datatype.code)
    allowed = _JSON_TYPES.get(code, _INTEGER)
    packed = array(code)
    for part in parts(values):
        _check_types(tensor, datatype.name, part, allowed)
        if code in "fd" and _too_large(code, part):
            reject(tensor, f"its data has a number out of range for {datatype.name}")
        try:
            packed.fromlist(part)
        except OverflowError:
            reject(tensor, f"its data has a number out of range for {datatype.name}")
    return packed.tobytes()


def _too_large(code: str, part: list[float]) -> bool:
    """JSON has no infinity, but numbers that overflow to it."""
    largest = max(map(abs, part))
    return largest == _INFINITY or (code == "f" and largest > _LARGEST_FP32)


def _check_types(tensor: str, datatype: str, part: list[Any], allowed: set[type]) -> None:
    if not set(map(type, part)) <= allowed:
        odd = next(value for value in part if type(value) not in allowed)
        reject(tensor, f"its data has {_shown(odd)}, which is not a valid {datatype}")


def _shown(value: Any) -> str:
    """Not with orjson, which writes no integers above 64 bits."""
    if isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 32 else f"{text[:32]}..."


# The text of an element, by its index
DecodeText = Callable[[int, memoryview], str]


class TextDecoder:
    """Decodes one output of an answer, whose responses may split characters."""

    def __init__(self, tensor: str) -> None:
        self._tensor = tensor
        self._incomplete: dict[int, bytes] = {}  # by element

    def decode(self, element: int, data: memoryview) -> str:
        """The complete characters of a response. Raises UnicodeDecodeError."""
        held = self._incomplete.pop(element, b"") + data
        text, end = codecs.utf_8_decode(held, "strict", False)
        if end < len(held):
            self._incomplete[element] = held[end:]
        return text

    def finish(self) -> None:
        """Raise InvalidRequest if the answer ends within a character."""
        if self._incomplete:
            _reject_bytes(self._tensor)


def _decode_whole(_element: int, data: memoryview) -> str:
    return str(data, "utf-8")


def encode(
    tensor: str,
    datatype: Datatype,
    shape: Sequence[int],
    data: memoryview,
    decode_text: DecodeText = _decode_whole,
) -> bytes:
    """The tensor as a flat JSON array. `data` is flat, in bytes.

    Raises InvalidRequest if JSON cannot hold it; the client can request binary data.
    """
    check_size(tensor, datatype, shape, data.nbytes)
    if datatype is BYTES:
        count = element_count(tensor, shape)
        return _joined(map(orjson.dumps, _text_parts(tensor, count, data, decode_text)))
    if datatype.code is None:
        reject(tensor, f"{datatype.name} cannot be returned as JSON; request binary data")
    values = as_numbers(data, datatype.code)
    numbers = (values[start : start + _STEP].tolist() for start in range(0, len(values), _STEP))
    return _joined(_dumped(tensor, datatype, part) for part in numbers)


def _text_parts(
    tensor: str, count: int, data: memoryview, decode: DecodeText
) -> Iterator[list[str]]:
    elements = binary_tensors.elements(tensor, count, data)
    found = [(index, data[start:end]) for index, (start, end) in enumerate(elements)]
    try:
        for part in parts(found):
            yield [decode(index, element) for index, element in part]
    except UnicodeDecodeError:
        _reject_bytes(tensor)


def _reject_bytes(tensor: str) -> NoReturn:
    reject(tensor, "it has bytes that are not UTF-8; request binary data")


def _dumped(tensor: str, datatype: Datatype, part: list[Any]) -> bytes:
    if datatype.code in ("f", "d") and not _are_finite(part):
        reject(tensor, "it has NaN or infinity, which JSON cannot represent; request binary data")
    return orjson.dumps(part)


def _are_finite(part: list[float]) -> bool:
    total = sum(part)
    return total - total == 0 or all(number - number == 0 for number in part)


def _joined(arrays: Iterator[bytes]) -> bytes:
    return b"[" + b",".join([each[1:-1] for each in arrays]) + b"]"
