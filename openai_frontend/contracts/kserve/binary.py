"""Triton's binary tensor data: a body of JSON and, behind it, the tensors' bytes in its order."""

import struct
from collections.abc import Iterator, Sequence
from math import prod

from openai_frontend.contracts.kserve.datatypes import BYTES, Datatype, refuse
from openai_frontend.errors import InvalidRequest

HEADER = "inference-header-content-length"

_LENGTH = struct.Struct("<I")


def header_length(text: str | None, body_bytes: int) -> int:
    """The JSON's length by the header of that name; without it the body is all JSON.

    Zero means that the body is the bytes of the model's only input.
    """
    if text is None:
        return body_bytes
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidRequest(f"{HEADER} is no number of bytes: '{text[:32]}'", param=HEADER)
    length = int(text)
    if length > body_bytes:
        message = f"{HEADER} is {length}, and the body has {body_bytes} bytes"
        raise InvalidRequest(message, param=HEADER)
    return length


class Tail:
    """The bytes behind the JSON; each tensor takes its own, in the order of the JSON."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._taken = 0

    def take(self, tensor: str, byte_size: int) -> memoryview:
        """The next tensor's bytes, not copied."""
        end = self._taken + byte_size
        if end > len(self._data):
            left = len(self._data) - self._taken
            refuse(tensor, f"binary_data_size is {byte_size}, but {left} bytes follow")
        taken = self._data[self._taken : end]
        self._taken = end
        return taken

    def check_end(self) -> None:
        """Raises InvalidRequest where bytes are left that no tensor has taken."""
        if left := len(self._data) - self._taken:
            raise InvalidRequest(f"{left} bytes at the end of the body belong to no input")


def elements(tensor: str, count: int, data: memoryview) -> Iterator[tuple[int, int]]:
    """Where each element of a BYTES tensor begins and ends, its length left out.

    Raises InvalidRequest where the bytes are not so many elements.
    """
    start, end, found = 0, data.nbytes, 0
    while start < end:
        if end - start < _LENGTH.size:
            refuse(tensor, "it ends within the length of an element")
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if end - start < length:
            refuse(tensor, "it ends within an element")
        yield start, start + length
        start += length
        found += 1
    if found != count:
        refuse(tensor, f"it has {found} elements, and its shape {count}")


def check_elements(tensor: str, datatype: Datatype, shape: Sequence[int], data: memoryview) -> None:
    """A BYTES tensor that is cut wrongly is refused here: not every model looks."""
    if datatype is BYTES:
        for _ in elements(tensor, prod(shape), data):
            pass
