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
    """The bytes behind the JSON; each tensor takes its own, in the order of the JSON."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._taken = 0

    def take(self, tensor: str, byte_size: int) -> memoryview:
        """The next tensor's bytes, not copied."""
        end = self._taken + byte_size
        if end > len(self._data):
            left = len(self._data) - self._taken
            reject(tensor, f"binary_data_size is {byte_size}, but {left} bytes follow")
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
            reject(tensor, "it ends within the length of an element")
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if end - start < length:
            reject(tensor, "it ends within an element")
        yield start, start + length
        start += length
        found += 1
    if found != count:
        reject(tensor, f"it has {found} elements, and its shape {count}")


def check_elements(tensor: str, datatype: Datatype, shape: Sequence[int], data: memoryview) -> None:
    """A BYTES tensor that is cut wrongly is refused here: not every model looks."""
    if datatype is BYTES:
        for _ in elements(tensor, prod(shape), data):
            pass


def raw_input(
    declared: Sequence[Mapping[str, Any]], data: memoryview, *, batches: bool
) -> dict[str, TensorInput]:
    """The model's only input. `declared`: the inputs of the model's metadata; of a model that
    `batches` the request is a batch of one.

    Raises InvalidRequest where the bytes alone do not tell the tensor's shape.
    """
    if len(declared) != 1:
        names = ", ".join(tensor["name"] for tensor in declared)
        raise InvalidRequest(f"a raw binary request is for models with one input, not {names}")
    name, shape = declared[0]["name"], [int(each) for each in declared[0]["shape"]]
    datatype = datatype_named(name, declared[0]["datatype"])
    if batches:
        shape[0] = 1
    if datatype is BYTES:
        if any(dimension not in (1, -1) for dimension in shape):
            reject(name, "a raw binary request holds one element of BYTES")
        element = len(data).to_bytes(4, "little") + bytes(data)
        return {name: (BYTES.name, (1,) * len(shape), element)}
    free = [place for place, dimension in enumerate(shape) if dimension < 0]
    if len(free) > 1:
        reject(name, f"the bytes do not tell its shape {shape}")
    if free:
        shape[free[0]] = 1
        fixed = prod(shape) * (datatype.size or 1)
        shape[free[0]] = len(data) // fixed if fixed else 0
    check_size(name, datatype, shape, len(data))
    return {name: (datatype.name, tuple(shape), data)}
