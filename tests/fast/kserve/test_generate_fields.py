"""Fields of generate requests as tensors and parameters."""

import struct

import orjson
import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve import generate, outputs
from openai_frontend.kserve.binary_tensors import raw_input
from openai_frontend.kserve.outputs import (
    OutputTensor,
    RequestedOutput,
    encode_output,
    top_classes,
)

TEXT = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
STREAM = {"name": "stream", "datatype": "BOOL", "shape": [1]}
JSON = RequestedOutput("x")


def declared(datatype, shape):
    return [{"name": "x", "datatype": datatype, "shape": shape}]


def test_inputs_and_parameters():
    """A field that the model declares is a tensor, also inside `parameters`; others are not."""
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
def test_values_fill_the_declared_shape(shape, values, shaped):
    """The innermost free dimension takes the remaining elements."""
    fields = generate.read_fields({"x": values}, declared("INT32", shape))

    assert fields.inputs["x"][1] == shaped


@pytest.mark.parametrize(
    ("shape", "values"), [([2], [1, 2, 3]), ([1], [1, 2]), ([-1, 2], [1, 2, 3]), ([], [1, 2])]
)
def test_values_that_do_not_fit(shape, values):
    """A number of values that does not fit the shape is rejected with the field's name."""
    with pytest.raises(InvalidRequest, match="'x'"):
        generate.read_fields({"x": values}, declared("INT32", shape))


def test_duplicate_fields_are_rejected():
    """A field both inside and outside of `parameters` is rejected as ambiguous."""
    with pytest.raises(InvalidRequest, match="stream"):
        generate.read_fields({"stream": True, "parameters": {"stream": False}}, [STREAM])


def test_response_members():
    """One element is a scalar, several are a list. Parameters are members of the same object."""
    outputs = [
        OutputTensor("text_output", "BYTES", (1,), memoryview(b"\x02\x00\x00\x00hi")),
        OutputTensor("ids", "INT32", (2,), memoryview(struct.pack("<2i", 5, 6))),
    ]

    encoder = generate.ResponseEncoder({"model_name": "m"})
    document = encoder.encode(outputs, {"cached": True})

    told = {"model_name": "m", "cached": True, "text_output": "hi", "ids": [5, 6]}
    assert orjson.loads(document) == told


ANSWER = "aé€😀\U0010ffff"


def text_output(name, *texts):
    data = b"".join(struct.pack("<I", len(each)) + each for each in texts)
    return OutputTensor(name, "BYTES", (len(texts),), memoryview(data))


@pytest.mark.parametrize("at", range(len(ANSWER.encode()) + 1))
def test_characters_between_responses(at):
    """Each element of each output continues in the next response with it."""
    encoded, encoder = ANSWER.encode(), generate.ResponseEncoder({})
    parts = encoded[:at], encoded[at:]
    responses = [
        [text_output("one", parts[0])],
        [text_output("two", encoded, parts[0])],
        [text_output("one", parts[1]), text_output("two", encoded, parts[1])],
    ]

    answer = {"one": "", "two": ["", ""]}
    for response in responses:
        document = orjson.loads(encoder.encode(response, {}))
        answer["one"] += document.get("one", "")
        pairs = zip(answer["two"], document.get("two", ["", ""]), strict=True)
        answer["two"] = [text + more for text, more in pairs]
    encoder.finish()

    assert answer == {"one": ANSWER, "two": [ANSWER * 2, ANSWER]}


@pytest.mark.parametrize(
    "parts", [[b"\xe2\x82"], [b"a\xf0", b"\x9f"], [b"\xe2", b"a"], [b"\xff"], [b"\xed\xa0\x80"]]
)
def test_texts_that_are_not_utf8(parts):
    """An incomplete character at the end and invalid bytes are errors, as in `infer`."""
    encoder = generate.ResponseEncoder({})

    def encode_all():
        for part in parts:
            encoder.encode([text_output("one", part)], {})
        encoder.finish()

    with pytest.raises(InvalidRequest, match=r"'one'.*not UTF-8"):
        encode_all()


def test_binary_output():
    """The JSON has the size, and the bytes follow unchanged."""
    data = memoryview(b"\x00\x3c\x00\xfc")

    text, tail = encode_output(
        OutputTensor("h", "FP16", (2,), data), RequestedOutput("h", binary=True)
    )

    assert orjson.loads(text)["parameters"] == {"binary_data_size": 4}
    assert tail is data


def test_classification():
    """The highest elements of each batch entry, with their indices."""
    data = memoryview(struct.pack("<6f", 1, 5.5, 10, 4, 2, 3))

    one = top_classes(OutputTensor("x", "FP32", (6,), data), 2, batches=False)
    two = top_classes(OutputTensor("x", "FP32", (2, 3), data), 9, batches=True)

    assert orjson.loads(encode_output(one, JSON)[0])["data"] == [
        "10.000000:2",
        "5.500000:1",
    ]
    assert (two.datatype, two.shape) == ("BYTES", (2, 3))
    assert orjson.loads(encode_output(two, JSON)[0])["data"][3] == "4.000000:0"


def test_classification_in_steps(monkeypatch):
    """Long tensors are sorted in parts; the first of equal elements comes first."""
    monkeypatch.setattr(outputs, "_STEP", 2)
    data = memoryview(struct.pack("<7i", 1, 5, 10, 4, 5, 3, 10))

    top = top_classes(OutputTensor("x", "INT32", (7,), data), 5, batches=False)

    assert orjson.loads(encode_output(top, JSON)[0])["data"] == [
        "10:2", "10:6", "5:1", "5:4", "4:3",
    ]  # fmt: skip


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES", "FP16"])
def test_classification_needs_comparable_numbers(datatype):
    """Classification of other datatypes is rejected with the output's name."""
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
def test_raw_body(datatype, shape, batches, read):
    """A body of bytes alone is the only input; its size gives the shape. Text needs no prefix."""
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
def test_ambiguous_raw_bodies_are_rejected(inputs):
    """Rejected: several inputs, several free dimensions, and a size that does not fit."""
    with pytest.raises(InvalidRequest):
        raw_input(inputs, memoryview(b"12345678"), batches=False)
