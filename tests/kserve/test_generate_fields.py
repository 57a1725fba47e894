"""Fields of generate requests as tensors and parameters."""

import struct

import orjson
import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve import generate
from openai_frontend.kserve.binary_tensors import raw_input
from openai_frontend.kserve.outputs import OutputTensor, encode_output, top_classes

TEXT = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
STREAM = {"name": "stream", "datatype": "BOOL", "shape": [1]}


def declared(datatype, shape):
    return [{"name": "x", "datatype": datatype, "shape": shape}]


def test_inputs_and_parameters():
    """A field that the model declares is a tensor, also within `parameters`; others are not."""
    request = {"text_input": "hi", "seed": 1, "parameters": {"stream": True, "temperature": 0}}

    fields = generate.read_fields(request, [TEXT, STREAM])

    assert fields.inputs == {
        "text_input": ("BYTES", (1,), b"\x02\x00\x00\x00hi"),
        "stream": ("BOOL", (1,), b"\x01"),
    }
    assert fields.parameters == {"seed": 1, "temperature": 0}


@pytest.mark.parametrize(
    ("shape", "values", "shaped"),
    [
        ([-1], [1, 2, 3], (3,)),
        ([-1, 1], [1, 2], (2, 1)),
        ([-1, 2], [1, 2, 3, 4], (2, 2)),
        ([-1, -1], [1, 2, 3], (1, 3)),
        ([1], 7, (1,)),
        ([1, -1], 7, (1, 1)),
        ([2, 2], [1, 2, 3, 4], (2, 2)),
    ],
)
def test_shapes(shape, values, shaped):
    """A value takes its declared shape; of free dimensions the innermost takes what is left."""
    fields = generate.read_fields({"x": values}, declared("INT32", shape))

    assert fields.inputs["x"][1] == shaped


@pytest.mark.parametrize(
    ("shape", "values"), [([2], [1, 2, 3]), ([1], [1, 2]), ([-1, 2], [1, 2, 3]), ([], [1, 2])]
)
def test_values_that_do_not_fit(shape, values):
    """Another number of values than the shape has is refused by the field's name."""
    with pytest.raises(InvalidRequest, match="'x'"):
        generate.read_fields({"x": values}, declared("INT32", shape))


def test_a_field_that_comes_twice():
    """What stands both beside `parameters` and within is refused: nobody knows which is meant."""
    with pytest.raises(InvalidRequest, match="stream"):
        generate.read_fields({"stream": True, "parameters": {"stream": False}}, [STREAM])


def test_the_response():
    """An output of one element is that element, of several a list; parameters stand beside them."""
    outputs = [
        OutputTensor("text_output", "BYTES", (1,), memoryview(b"\x02\x00\x00\x00hi")),
        OutputTensor("ids", "INT32", (2,), memoryview(struct.pack("<2i", 5, 6))),
    ]

    document = generate.encode_response({"model_name": "m"}, outputs, {"cached": True})

    told = {"model_name": "m", "cached": True, "text_output": "hi", "ids": [5, 6]}
    assert orjson.loads(document) == told


def test_an_output_in_binary():
    """Its JSON has its size, and its bytes follow untouched."""
    data = memoryview(b"\x00\x3c\x00\xfc")

    text, tail = encode_output(OutputTensor("h", "FP16", (2,), data), binary=True)

    assert orjson.loads(text)["parameters"] == {"binary_data_size": 4}
    assert tail is data


def test_classes():
    """The highest elements of each entry of a batch, with their places."""
    data = memoryview(struct.pack("<6f", 1, 5.5, 10, 4, 2, 3))

    one = top_classes(OutputTensor("x", "FP32", (6,), data), 2, batches=False)
    two = top_classes(OutputTensor("x", "FP32", (2, 3), data), 9, batches=True)

    assert orjson.loads(encode_output(one, binary=False)[0])["data"] == [
        "10.000000:2",
        "5.500000:1",
    ]
    assert (two.datatype, two.shape) == ("BYTES", (2, 3))
    assert orjson.loads(encode_output(two, binary=False)[0])["data"][3] == "4.000000:0"


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES", "FP16"])
def test_classes_of_what_has_none(datatype):
    """Only numbers that can be compared here have classes."""
    with pytest.raises(InvalidRequest, match="'x'"):
        top_classes(OutputTensor("x", datatype, (0,), memoryview(b"")), 1, batches=False)


@pytest.mark.parametrize(
    ("datatype", "shape", "batches", "read"),
    [
        ("INT32", [-1], False, (2,)),
        ("INT32", [-1, 2], True, (1, 2)),
        ("INT32", [-1, -1], True, (1, 2)),
        ("BYTES", [1], False, (1,)),
        ("BYTES", [-1, 1], True, (1, 1)),
    ],
)
def test_a_raw_body(datatype, shape, batches, read):
    """Bytes alone are the only input, whose shape they tell; text needs no length before it."""
    tensor = raw_input(declared(datatype, shape), memoryview(b"12345678"), batches=batches)["x"]

    before = b"\x08\x00\x00\x00" if datatype == "BYTES" else b""
    assert (tensor[1], bytes(tensor[2])) == (read, before + b"12345678")


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [TEXT, STREAM],
        declared("INT32", [-1, -1]),
        declared("INT32", [3]),
        declared("INT32", [-1, 3]),
        declared("BYTES", [2]),
    ],
)
def test_a_raw_body_that_tells_too_little(inputs):
    """A model of several inputs or free dimensions, and a size that does not fit, are refused."""
    with pytest.raises(InvalidRequest):
        raw_input(inputs, memoryview(b"12345678"), batches=False)
