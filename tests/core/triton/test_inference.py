import asyncio
import gc
import json
import struct
from typing import Any

import pytest

from openai_frontend import errors
from openai_frontend.infer_options import InferOptions, OutputRequest
from openai_frontend.triton import _core, error_codes
from tests import mock_models
from tests.core.triton import echo_runtime
from tests.core.triton.generation_inputs import collect, generation, text

# Three elements of each datatype, as bytes and as Python values.
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "BOOL": (bytes([1, 0, 1]), [True, False, True]),
    "UINT8": (struct.pack("<3B", 0, 1, 2**8 - 1), [0, 1, 2**8 - 1]),
    "UINT16": (struct.pack("<3H", 0, 1, 2**16 - 1), [0, 1, 2**16 - 1]),
    "UINT32": (struct.pack("<3I", 0, 1, 2**32 - 1), [0, 1, 2**32 - 1]),
    "UINT64": (struct.pack("<3Q", 0, 1, 2**64 - 1), [0, 1, 2**64 - 1]),
    "INT8": (struct.pack("<3b", -(2**7), 0, 2**7 - 1), [-(2**7), 0, 2**7 - 1]),
    "INT16": (struct.pack("<3h", -(2**15), 0, 2**15 - 1), [-(2**15), 0, 2**15 - 1]),
    "INT32": (struct.pack("<3i", -(2**31), 0, 2**31 - 1), [-(2**31), 0, 2**31 - 1]),
    "INT64": (struct.pack("<3q", -(2**63), 0, 2**63 - 1), [-(2**63), 0, 2**63 - 1]),
    "FP16": (struct.pack("<3e", -1.5, 0, 65504), [-1.5, 0, 65504]),
    "FP32": (struct.pack("<3f", -1.5, 0, 2.0**100), [-1.5, 0, 2.0**100]),
    "FP64": (struct.pack("<3d", -1.5, 0, 2.0**1000), [-1.5, 0, 2.0**1000]),
    "BYTES": (text("", "é", b"\0\xff")[2], [b"", "é".encode(), b"\0\xff"]),
    "BF16": (struct.pack("<3H", 0xBFC0, 0, 0x7180), [-1.5, 0, 2.0**100]),
}
# The struct format of the tensor's memoryview; BYTES shows raw memory.
FORMATS = dict(zip(VALUES, "?BHIQbhiqefdBH", strict=True))

MIB = 1024 * 1024


async def echo(server, inputs, *, request_id="", **options):
    """The only response to a request with these options."""
    outputs = [OutputRequest(name) for name in options.pop("outputs", ())]
    wanted = InferOptions(outputs=outputs, **options)
    sent = server.infer("echo", inputs, request_id=request_id, options=wanted)
    (response,) = await collect(sent)
    return response


async def every_datatype(start_echo, *, empty=False):
    """The response with a tensor of each datatype, named after it."""
    server = await start_echo(**{dtype: (dtype, [-1]) for dtype in VALUES})
    sent = {
        dtype: (dtype, (0,), b"") if empty else (dtype, (3,), data)
        for dtype, (data, _) in VALUES.items()
    }
    return await echo(server, sent)


async def test_every_datatype_is_returned(start_echo):
    """A tensor of each datatype arrives as it was sent."""
    response = await every_datatype(start_echo)
    for dtype, (data, values) in VALUES.items():
        tensor = response.tensor(f"{dtype}_echo")
        assert (tensor.name, tensor.dtype, tensor.shape) == (f"{dtype}_echo", dtype, (3,))
        assert (bytes(memoryview(tensor)), tensor.tolist()) == (data, values), dtype


async def test_buffer_of_every_datatype(start_echo):
    """A tensor's buffer is flat and has the type of its elements."""
    response = await every_datatype(start_echo)
    for dtype in VALUES:
        view = memoryview(response.tensor(f"{dtype}_echo"))
        expected = (dtype, FORMATS[dtype], 1, len(VALUES[dtype][0]), True)
        assert (dtype, view.format, view.ndim, view.nbytes, view.readonly) == expected


async def test_item_is_the_first_element(start_echo):
    """A response's item is the first element of the output."""
    response = await every_datatype(start_echo)

    items = {dtype: response.item(f"{dtype}_echo") for dtype in VALUES}

    assert items == {dtype: values[0] for dtype, (_, values) in VALUES.items()}


async def test_tensor_without_elements(start_echo):
    """A tensor of size zero has no first element and an empty buffer."""
    response = await every_datatype(start_echo, empty=True)
    for dtype in VALUES:
        tensor = response.tensor(f"{dtype}_echo")
        found = (tensor.dtype, tensor.shape, tensor.nbytes, tensor.item(), tensor.tolist())
        assert found == (dtype, (0,), 0, None, [])
        assert memoryview(tensor).nbytes == 0


@pytest.mark.parametrize("shape", [(1, 6), (2, 3), (1, 2, 3), (3, 0, 2), (1, 1, 1, 6)])
async def test_shapes(start_echo, shape):
    """A tensor keeps its shape, whatever its rank."""
    size = 6 if 0 not in shape else 0
    server = await start_echo(x=("INT16", [-1] * len(shape)))
    response = await echo(server, {"x": ("INT16", shape, struct.pack(f"<{size}h", *range(size)))})

    assert (response.tensor("x_echo").shape, response.tolist("x_echo")) == (
        shape,
        list(range(size)),
    )


async def test_several_inputs_and_outputs(start_echo):
    """A request may have any number of tensors, of different datatypes."""
    server = await start_echo(**{f"x_{dtype}": (dtype, [-1]) for dtype in VALUES})
    inputs = {f"x_{dtype}": (dtype, (3,), data) for dtype, (data, _) in VALUES.items()}
    response = await echo(server, inputs)

    assert {dtype: response.tolist(f"x_{dtype}_echo") for dtype in VALUES} == {
        dtype: values for dtype, (_, values) in VALUES.items()
    }


async def test_parameters(start_echo):
    """Parameters of each type reach the model with their type."""
    server = await start_echo(x=("BOOL", [1]))
    sent = {"text": "é", "number": -(2**40), "yes": True, "no": False, "fraction": 0.25}
    response = await echo(server, {"x": ("BOOL", (1,), b"\1")}, parameters=sent)

    assert json.loads(response.item("parameters")) == sent


@pytest.mark.parametrize("value", [None, 2**70, [1]])
async def test_parameter_of_an_unsupported_type(start_echo, nothing_left, value):
    """It is rejected and leaves nothing behind."""
    server = await start_echo(x=("BOOL", [1]))

    with pytest.raises((TypeError, ValueError, RuntimeError)):
        server.infer(
            "echo", {"x": ("BOOL", (1,), b"\1")}, options=InferOptions(parameters={"key": value})
        )


async def test_request_id(start_echo):
    """The request's id reaches the model."""
    server = await start_echo(x=("BOOL", [1]))
    response = await echo(server, {"x": ("BOOL", (1,), b"\1")}, request_id="chat-7")

    assert response.item("request_id") == b"chat-7"


async def test_dropped_request(start_echo, monkeypatch):
    """A request that Python drops without a response fails, so the caller does not hang."""
    monkeypatch.setattr(echo_runtime.EchoHost, "start", lambda self, execution: None)
    server = await start_echo(x=("BOOL", [1]))

    async with asyncio.timeout(30):
        with pytest.raises(errors.InferenceFailed, match="dropped the request without a response"):
            await echo(server, {"x": ("BOOL", (1,), b"\1")})


async def test_second_final_response(start_echo, monkeypatch):
    """A response after the end raises in the engine; the caller gets the first one."""
    refusals = []

    def start(self, execution, once=echo_runtime.EchoHost.start):
        once(self, execution)
        with pytest.raises(_core.TritonError, match="already ended") as refused:
            once(self, execution)
        refusals.append(refused.value.args[0])

    monkeypatch.setattr(echo_runtime.EchoHost, "start", start)
    server = await start_echo(x=("BOOL", [1]))
    response = await echo(server, {"x": ("BOOL", (1,), b"\1")})

    assert (response.final, refusals) == (True, [error_codes.INTERNAL])


async def test_priority_and_timeout(start_echo):
    """A priority and a queue timeout are accepted."""
    server = await start_echo(x=("BOOL", [1]))
    response = await echo(server, {"x": ("BOOL", (1,), b"\1")}, priority=1, timeout_us=10**9)

    assert response.final


async def test_requested_outputs(start_echo):
    """A request may name outputs; in-process models send the others too."""
    server = await start_echo(x=("BOOL", [1]))
    response = await echo(server, {"x": ("BOOL", (1,), b"\1")}, outputs=["x_echo"])

    assert response.item("x_echo")


async def test_unknown_output(start_echo):
    """Requesting an output that the model does not declare is the client's error."""
    server = await start_echo(x=("BOOL", [1]))

    with pytest.raises(errors.InvalidRequest, match="'absent'"):
        await echo(server, {"x": ("BOOL", (1,), b"\1")}, outputs=["absent"])


async def test_absent_output(start_echo):
    """A response returns None for an output that it does not have."""
    server = await start_echo(x=("BOOL", [1]))
    response = await echo(server, {"x": ("BOOL", (1,), b"\1")})

    assert (response.item("z"), response.tolist("z"), response.tensor("z")) == (None, None, None)


REFUSED = {
    "unknown input": {"x": ("INT8", (1,), b"1"), "y": ("INT8", (1,), b"1")},
    "missing input": {},
    "wrong datatype": {"x": ("UINT8", (1,), b"1")},
    "wrong rank": {"x": ("INT8", (1, 1), b"1")},
    "too few bytes": {"x": ("INT8", (2,), b"1")},
    "too many bytes": {"x": ("INT8", (1,), b"12")},
    "negative size": {"x": ("INT8", (-1,), b"1")},
}


@pytest.mark.parametrize("inputs", REFUSED.values(), ids=REFUSED.keys())
async def test_inputs_that_the_model_does_not_declare(start_echo, inputs):
    """Inputs that differ from the model's declaration are the client's error."""
    server = await start_echo(x=("INT8", [-1]))

    with pytest.raises(errors.InvalidRequest, match=r"'(x|y|echo)'"):
        await echo(server, inputs)


MALFORMED = {
    "no such datatype": {"x": ("INT7", (1,), b"1")},
    "no tuple": {"x": b"1"},
    "two parts": {"x": ("INT8", (1,))},
    "shape of text": {"x": ("INT8", "1", b"1")},
    "data of text": {"x": ("INT8", (1,), "1")},
    "name of bytes": {b"x": ("INT8", (1,), b"1")},
}


@pytest.mark.parametrize("inputs", MALFORMED.values(), ids=MALFORMED.keys())
async def test_inputs_that_are_not_tensors(start_echo, inputs):
    """A value that is not a tensor is a programming error and leaves nothing behind."""
    server = await start_echo(x=("INT8", [-1]))

    with pytest.raises((TypeError, ValueError, RuntimeError, BufferError)):
        server.infer("echo", inputs)


@pytest.mark.parametrize(
    "data", [struct.pack("<I", 5) + b"four", b"\1\0", struct.pack("<I", 2**32 - 1)]
)
async def test_truncated_strings(server, data):
    """A string whose length does not match its bytes is the client's error."""
    with pytest.raises(errors.InvalidRequest):
        await collect(server.infer("mock", {"text_input": ("BYTES", (1,), data)}))


NULS: dict[str, dict[str, Any]] = {
    "model": {"model_name": "mock\0"},
    "input": {"inputs": {"text_input\0": text("a")}},
    "output": {"options": InferOptions(outputs=[OutputRequest("text_output\0")])},
    "id": {"request_id": "a\0"},
    "parameter": {"options": InferOptions(parameters={"a\0": 1})},
    "text": {"options": InferOptions(parameters={"a": "b\0"})},
}


@pytest.mark.parametrize("changed", NULS.values(), ids=NULS)
async def test_string_with_a_nul(server, changed):
    """A string that the core would cut at a NUL is rejected."""
    asked = {"model_name": "mock", "inputs": generation(max_tokens=1), **changed}
    with pytest.raises(errors.InvalidRequest, match="NUL"):
        server.infer(**asked)


async def test_model_name_with_a_nul(server):
    """The name matches no loaded model."""
    assert server.model_is_ready("mock")
    assert not server.model_is_ready("mock\0")


async def test_unknown_model(server):
    """A request to an unknown model is rejected with its name."""
    with pytest.raises(errors.ModelNotFound, match="absent"):
        server.infer("absent", generation())


async def test_unknown_version(server):
    """A request to an unknown version is rejected."""
    with pytest.raises(errors.GatewayError, match="mock"):
        server.infer("mock", generation(), version=7)


async def test_large_input_is_not_copied(start_echo):
    """The caller's memory is used until the request ends."""
    server = await start_echo(x=("UINT8", [-1]))
    data = bytearray(b"\1" * MIB)
    stream = server.infer("echo", {"x": ("UINT8", (MIB,), data)})
    with pytest.raises(BufferError):
        data.append(1)
    await collect(stream)

    data.append(1)
    assert len(data) == MIB + 1


async def test_large_input_of_a_rejected_request_is_released(start_echo):
    """The core releases its memory."""
    server = await start_echo(x=("INT8", [-1]))
    data = bytearray(MIB)
    with pytest.raises(errors.InvalidRequest):
        await echo(server, {"x": ("UINT8", (MIB,), data)})

    data.append(1)
    assert len(data) == MIB + 1


async def test_small_input_is_copied(start_echo):
    """The caller may reuse its memory at once."""
    server = await start_echo(x=("UINT8", [-1]))
    data = bytearray(b"old")
    stream = server.infer("echo", {"x": ("UINT8", (3,), data)})
    data[:] = b"new memory"
    (response,) = await collect(stream)

    assert bytes(memoryview(response.tensor("x_echo"))) == b"old"  # type: ignore[arg-type]


async def test_large_tensor(start_echo):
    """A megabyte arrives as it was sent, in both directions."""
    server = await start_echo(x=("UINT32", [-1]))
    data = struct.pack(f"<{MIB // 4}I", *range(MIB // 4))
    response = await echo(server, {"x": ("UINT32", (MIB // 4,), data)})

    assert memoryview(response.tensor("x_echo")).cast("B") == data


async def test_non_contiguous_memory(start_echo):
    """It is rejected instead of sent in the wrong order."""
    server = await start_echo(x=("UINT8", [-1]))

    with pytest.raises(BufferError):
        server.infer("echo", {"x": ("UINT8", (2,), memoryview(b"1234")[::2])})


async def test_embedding_is_not_copied(repository, start_server):
    """Python reads the memory that the model wrote, which outlives the response."""
    mock_models.write(repository, "mock", dimensions=4096)
    server = await start_server()
    request = {"input": "hello", "pooling_params": {"dimensions": 4096}}
    inputs = {"embedding_request": text(json.dumps(request))}
    (response,) = await collect(server.infer("mock", inputs))
    views = [memoryview(response.tensor("embedding")) for _ in range(2)]  # type: ignore[arg-type]
    before = _core.live_counts()["buffers"]
    del response
    gc.collect()

    assert (views[0].format, views[0].shape, views[0] == views[1]) == ("f", (4096,), True)
    assert (before, _core.live_counts()["buffers"]) == (2, 1)


async def test_tensor_outlives_the_core(repository, start_server):
    """A tensor with references is valid after the core is gone."""
    mock_models.write(repository, "mock")
    server = await start_server()
    (response,) = await collect(server.infer("mock", generation(stream=False, max_tokens=1)))
    tensor = response.tensor("text_output")
    await server.unload_model("mock")
    await server.stop()

    assert tensor.item() == b" token"
