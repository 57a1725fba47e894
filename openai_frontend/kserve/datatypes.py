"""Triton's datatypes, and the checks for tensors of any datatype. Never looks at elements."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from openai_frontend.errors import InvalidRequest

# NumPy counts bytes in int64, also those of an empty tensor: as if its zeros were ones. It refuses
# more, which ends the process of a Python model.
_MOST_ELEMENTS = (2**63 - 1) // 8
_MAX_DIMENSION = 2**31 - 1  # Triton compares the batch dimension with its limit as int32

TensorInput = tuple[str, tuple[int, ...], bytes | memoryview]
"""Triton's datatype, shape, raw bytes."""


@dataclass(frozen=True, slots=True)
class Datatype:
    """One of Triton's datatypes."""

    name: str
    size: int | None  # bytes of an element; None if elements differ in length
    code: str | None  # type code of array and memoryview; None if JSON has no such number


_ALL = (
    Datatype("BOOL", 1, "?"),
    Datatype("UINT8", 1, "B"),
    Datatype("UINT16", 2, "H"),
    Datatype("UINT32", 4, "I"),
    Datatype("UINT64", 8, "Q"),
    Datatype("INT8", 1, "b"),
    Datatype("INT16", 2, "h"),
    Datatype("INT32", 4, "i"),
    Datatype("INT64", 8, "q"),
    Datatype("FP16", 2, None),
    Datatype("BF16", 2, None),
    Datatype("FP32", 4, "f"),
    Datatype("FP64", 8, "d"),
    Datatype("BYTES", None, None),
)
DATATYPES: Mapping[str, Datatype] = {datatype.name: datatype for datatype in _ALL}

BYTES = DATATYPES["BYTES"]


def as_numbers(data: memoryview, code: str) -> "memoryview[Any]":
    """A view of flat bytes as numbers of a type code."""
    found: memoryview[Any] = data.cast(code)  # type: ignore[call-overload]  # cast() is typed for literals
    return found


def reject(tensor: str, reason: str) -> NoReturn:
    """Raises InvalidRequest with the tensor's name."""
    raise InvalidRequest(f"tensor '{tensor[:128]}': {reason}", param=tensor[:128])


# Tensors of in-process models that only the gateway itself may send. `media_info` has the digest of
# each image and audio file, under which engines share what they have decoded.
_RESERVED = frozenset({"kv_transfer", "media_info"})


def refuse_reserved(tensor: str) -> None:
    """Raises InvalidRequest for an input with which a client would control the engine itself."""
    if tensor in _RESERVED:
        reject(tensor, "it is reserved for the gateway")


def datatype_named(tensor: str, datatype: str) -> Datatype:
    found = DATATYPES.get(datatype)
    if found is None:
        reject(tensor, f"unknown datatype '{datatype[:32]}'; use one of {_names()}")
    return found


def element_count(tensor: str, shape: Sequence[int]) -> int:
    if any(dimension < 0 for dimension in shape):
        reject(tensor, f"its shape {list(shape)} has a negative dimension")
    extent = math.prod(dimension or 1 for dimension in shape)
    if extent > _MOST_ELEMENTS or any(dimension > _MAX_DIMENSION for dimension in shape):
        reject(tensor, f"its shape {list(shape)} is too large")
    return math.prod(shape)


def check_size(tensor: str, datatype: Datatype, shape: Sequence[int], byte_size: int) -> None:
    """Raises InvalidRequest unless `byte_size` fits the shape. A BYTES element takes at least 4."""
    count = element_count(tensor, shape)
    if datatype.size is None:
        if byte_size < 4 * count or (count == 0 and byte_size):
            reject(tensor, f"{byte_size} bytes cannot hold {count} elements of {datatype.name}")
    elif byte_size != count * datatype.size:
        expected = count * datatype.size
        reject(
            tensor,
            f"{datatype.name} of shape {list(shape)} needs {expected} bytes, got {byte_size}",
        )


def _names() -> str:
    return ", ".join(DATATYPES)
