"""A body that is one tensor's bytes and nothing else: Triton's raw binary request."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from openai_frontend.contracts.kserve.datatypes import (
    BYTES,
    TensorInput,
    check_size,
    known,
    refuse,
)
from openai_frontend.errors import InvalidRequest


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
    datatype = known(name, declared[0]["datatype"])
    if batches:
        shape[0] = 1
    if datatype is BYTES:
        if any(dimension not in (1, -1) for dimension in shape):
            refuse(name, "a raw binary request holds one element of BYTES")
        element = len(data).to_bytes(4, "little") + bytes(data)
        return {name: (BYTES.name, (1,) * len(shape), element)}
    free = [place for place, dimension in enumerate(shape) if dimension < 0]
    if len(free) > 1:
        refuse(name, f"the bytes do not tell its shape {shape}")
    if free:
        shape[free[0]] = 1
        fixed = prod(shape) * (datatype.size or 1)
        shape[free[0]] = len(data) // fixed if fixed else 0
    check_size(name, datatype, shape, len(data))
    return {name: (datatype.name, tuple(shape), data)}
