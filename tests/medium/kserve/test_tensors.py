"""Tensors as JSON, as binary data and as raw bytes."""

import struct
from math import prod
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve import binary_tensors, json_tensors
from openai_frontend.kserve.datatypes import DATATYPES, check_size, datatype_named
from openai_frontend.kserve.infer import JSON_LENGTH_HEADER, json_length

SIZES = (8, 16, 32, 64)
INTEGERS = {
    **{f"UINT{bits}": st.integers(0, 2**bits - 1) for bits in SIZES},
    **{f"INT{bits}": st.integers(-(2**bits // 2), 2**bits // 2 - 1) for bits in SIZES},
}
ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    **INTEGERS,
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "FP64": st.floats(allow_nan=False, allow_infinity=False),
    "BYTES": st.text(st.characters(exclude_categories=["Cs"])),
}
SHAPES = st.lists(st.integers(0, 4), max_size=4)


def nested(values: list[Any], shape: list[int]) -> Any:
    """A flat list nested to a shape."""
    if len(shape) <= 1:
        return values
    size = prod(shape[1:])
    return [nested(values[at * size : (at + 1) * size], shape[1:]) for at in range(shape[0])]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, list[int], list[Any]]:
    name, shape = draw(st.sampled_from(list(ELEMENTS))), draw(SHAPES)
    count = prod(shape)
    return name, shape, draw(st.lists(ELEMENTS[name], min_size=count, max_size=count))


@given(tensors())
def test_json_round_trip(tensor):
    """A JSON tensor, flat or nested, is encoded to the same JSON."""
    name, shape, values = tensor
    datatype = DATATYPES[name]

    raw = json_tensors.decode("x", datatype, shape, orjson.loads(orjson.dumps(values)))

    assert json_tensors.decode("x", datatype, shape, nested(values, shape)) == raw
    assert orjson.loads(json_tensors.encode("x", datatype, shape, memoryview(raw))) == values


@given(tensors())
def test_json_decodes_to_the_size_of_binary_data(tensor):
    """A decoded JSON tensor has the size of the same tensor as binary data."""
    name, shape, values = tensor
    datatype = DATATYPES[name]

    raw = json_tensors.decode("x", datatype, shape, values)

    check_size("x", datatype, shape, len(raw))
    binary_tensors.check_elements("x", datatype, shape, memoryview(raw))


@given(st.lists(st.binary(max_size=9)), st.integers(1, 3))
def test_truncated_bytes_are_rejected(elements, cut):
    """A BYTES tensor that is too short or too long is rejected with its name."""
    raw = b"".join(struct.pack("<I", len(each)) + each for each in elements)
    places = list(binary_tensors.elements("x", len(elements), memoryview(raw)))

    assert [raw[start:end] for start, end in places] == elements
    with pytest.raises(InvalidRequest, match="'x'"):
        list(binary_tensors.elements("x", len(elements), memoryview(raw + bytes(cut))))


LONG = 50_000  # elements: more than one step


@pytest.mark.parametrize(("name", "value"), [("INT32", 7), ("FP32", 0.5), ("BYTES", "é")])
def test_long_tensors_are_converted_whole(name, value):
    """A tensor that is converted in several steps comes back complete."""
    datatype, values = DATATYPES[name], [value] * LONG

    raw = json_tensors.decode("x", datatype, [LONG], values)

    assert orjson.loads(json_tensors.encode("x", datatype, [LONG], memoryview(raw))) == values


REFUSED = {
    "a fraction": ("INT32", [1], [1.5]),
    "a boolean for a number": ("INT32", [1], [True]),
    "a number for a boolean": ("BOOL", [1], [1]),
    "a number for text": ("BYTES", [1], [1]),
    "null": ("FP32", [1], [None]),
    "text for a number": ("FP64", [1], ["1"]),
    "too large": ("UINT8", [1], [256]),
    "too small": ("UINT64", [1], [-1]),
    "out of range for FP32": ("FP32", [1], [1e39]),
    "too few": ("FP32", [3], [1.0, 2.0]),
    "too many": ("FP32", [1], [1.0, 2.0]),
    "ragged": ("INT32", [4], [[1, 2], [3], [4]]),
    "ragged within": ("INT32", [3], [[1, 2], 3]),
    "ragged at its start": ("INT32", [3], [1, [2, 3]]),
    "not an array": ("INT32", [1], 1),
    "an object": ("INT32", [1], [{}]),
    "more than 64 bits": ("INT64", [1], [2**64]),
    "more than 64 bits for text": ("BYTES", [1], [2**64]),
    "more than 64 bits for a boolean": ("BOOL", [1], [2**64]),
    "more than 64 bits in an object": ("INT32", [1], [{"a": 2**64}]),
    "FP16": ("FP16", [1], [1.0]),
    "BF16": ("BF16", [1], [1.0]),
    "negative": ("INT32", [-1], [1]),
    "a shape that overflows": ("INT32", [2**40, 2**40], [1]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_json_tensors(case):
    """JSON that does not fit the datatype and shape is rejected with the tensor's name."""
    name, shape, data = REFUSED[case]

    with pytest.raises(InvalidRequest, match="tensor 'x': ") as refused:
        json_tensors.decode("x", DATATYPES[name], shape, data)
    assert refused.value.param == "x"


@pytest.mark.parametrize("name", ["", "FP8", "int32", "STRING", "TYPE_INT32"])
def test_unknown_datatypes(name):
    """Only Triton's names are accepted; the error lists them."""
    with pytest.raises(InvalidRequest, match="UINT64"):
        datatype_named("x", name)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_not_encoded(number):
    """JSON cannot represent them; the error suggests binary data."""
    data = memoryview(struct.pack("<2f", 1.0, number))

    with pytest.raises(InvalidRequest, match="binary"):
        json_tensors.encode("x", DATATYPES["FP32"], [2], data)


def test_invalid_utf8_is_not_encoded():
    """The error suggests binary data."""
    data = memoryview(b"\x01\x00\x00\x00\xff")

    with pytest.raises(InvalidRequest, match="binary"):
        json_tensors.encode("x", DATATYPES["BYTES"], [1], data)


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [("INT32", [2], 7), ("FP16", [3], 3), ("BYTES", [2], 7), ("BYTES", [0], 4), ("BF16", [0], 1)],
)
def test_sizes_that_do_not_fit(name, shape, size):
    """Binary data whose size does not fit the shape is rejected with the tensor's name."""
    with pytest.raises(InvalidRequest, match="tensor 'x'"):
        check_size("x", DATATYPES[name], shape, size)


@pytest.mark.parametrize("text", ["-1", "x", "", "1.5", "11", "9" * 30, "²"])
def test_invalid_header_lengths(text):
    """The header must be a number of bytes that the body has."""
    with pytest.raises(InvalidRequest) as refused:
        json_length(text, 10)
    assert refused.value.param == JSON_LENGTH_HEADER


def test_binary_tail():
    """Each tensor takes the next bytes. Missing and extra bytes are rejected."""
    tail = binary_tensors.BinaryTail(memoryview(b"abcdef"))

    assert (bytes(tail.take("a", 2)), bytes(tail.take("b", 0))) == (b"ab", b"")
    with pytest.raises(InvalidRequest, match="'c'"):
        tail.take("c", 5)
    with pytest.raises(InvalidRequest, match="4 bytes"):
        tail.check_end()


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ([2**32 + 1, 1], 1),  # a batch of 1 in 32 bits
        ([2**32 + 1, 0], 0),
        ([2**62, 4], 0),  # no elements in 64 bits
        ([2**61, 1], 0),  # of 8 bytes: no bytes in 64 bits
        ([2**63, 1], 8),
        ([2**32 - 1, 0], 0),  # a batch of -1 in 32 bits
        ([2**31 - 1, 2**31 - 1, 0], 0),  # more than NumPy allows
    ],
)
def test_sizes_that_overflow_in_the_core_are_refused(shape, size):
    """Cores up to 2.51 check neither the batch size nor byte sizes for overflow, and the stub of a
    Python model dies of a shape that NumPy refuses: no such shape reaches them.
    """
    with pytest.raises(InvalidRequest):
        check_size("x", DATATYPES["INT64"], shape, size)
