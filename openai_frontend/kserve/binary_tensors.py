"""Triton's binary tensor data: bytes behind a JSON header, or the bytes of one tensor alone."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve.datatypes import (
    BYTES,
    Datatype,
    TensorInput,
    check_size,
    datatype_named,
    reject,
)

_LENGTH = struct.Struct("<I")


class BinaryTail:
    """The bytes behind the JSON. Each tensor takes its bytes, in the order of the JSON."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._offset = 0

    def take(self, tensor: str, byte_size: int) -> memoryview:
        """The next tensor's bytes, without a copy."""
        end = self._offset + byte_size
        if end > len(self._data):
            left = len(self._data) - self._offset
            reject(
                tensor,
                f"binary_data_size is {byte_size}, but only {left} bytes are left in the body",
            )
        data = self._data[self._offset : end]
        self._offset = end
        return data

    def check_end(self) -> None:
        """Raises InvalidRequest if bytes are left over."""
        if left := len(self._data) - self._offset:
            raise InvalidRequest(f"{left} bytes at the end of the body belong to no input")


def elements(tensor: str, count: int, data: memoryview) -> Iterator[tuple[int, int]]:
    """Start and end of each element of a BYTES tensor, without its length prefix.

    Raises InvalidRequest if the bytes do not hold exactly `count` elements.
    """
    start, end, found = 0, data.nbytes, 0
    while start < end:
        if end - start < _LENGTH.size:
            reject(tensor, "its data ends within the length of an element")
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if end - start < length:
            reject(tensor, "its data ends within an element")
        yield start, start + length
        start += length
        found += 1
    if found != count:
        reject(tensor, f"its data has {found} elements, but its shape has {count}")


def check_elements(tensor: str, datatype: Datatype, shape: Sequence[int], data: memoryview) -> None:
    """Rejects a malformed BYTES tensor, because not every model checks."""
    if datatype is BYTES:
        for _ in elements(tensor, prod(shape), data):
            pass


def raw_input(
    declared: Sequence[Mapping[str, Any]], data: memoryview, *, batches: bool
) -> dict[str, TensorInput]:
    """The only input of a model, from a body of nothing but its bytes (a raw binary request).

    `declared` are the inputs in the model's metadata. If the model `batches`, this is a batch of
    one. Raises InvalidRequest if the shape does not follow from the number of bytes.
    """
    if len(declared) != 1:
        names = ", ".join(tensor["name"] for tensor in declared)
        raise InvalidRequest(
            f"a raw binary request needs a model with one input; this one has {names}"
        )
    name, shape = declared[0]["name"], [int(each) for each in declared[0]["shape"]]
    datatype = datatype_named(name, declared[0]["datatype"])
    if batches:
        shape[0] = 1
    if datatype is BYTES:
        if any(dimension not in (1, -1) for dimension in shape):
            reject(name, "a raw binary request can only hold one BYTES element")
        element = len(data).to_bytes(4, "little") + bytes(data)
        return {name: (BYTES.name, (1,) * len(shape), element)}
    free = [place for place, dimension in enumerate(shape) if dimension < 0]
    if len(free) > 1:
        reject(name, f"its shape {shape} does not follow from the number of bytes")
    if free:
        shape[free[0]] = 1
        fixed = prod(shape) * (datatype.size or 1)
        shape[free[0]] = len(data) // fixed if fixed else 0
    check_size(name, datatype, shape, len(data))
    return {name: (datatype.name, tuple(shape), data)}
