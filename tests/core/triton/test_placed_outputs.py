"""Outputs that the core writes into memory of the caller."""

import pytest

from openai_frontend import errors
from openai_frontend.infer_options import InferOptions, OutputRequest
from openai_frontend.triton import _core
from tests.core.triton.generation_inputs import collect

SIZE = 100_000
DATA = bytes(range(250)) * (SIZE // 250)


async def place(server, memory):
    """The response to a request whose output goes to the memory."""
    outputs = [OutputRequest("x_echo", memory=memoryview(memory))]
    options = InferOptions(outputs=outputs)
    (response,) = await collect(
        server.infer("echo", {"x": ("UINT8", (SIZE,), DATA)}, options=options)
    )
    return response


async def test_output_is_written_to_the_memory(start_echo):
    """The core allocates nothing for it; the response has its size, but not its bytes."""
    server = await start_echo(x=("UINT8", [-1]))
    memory = bytearray(SIZE + 10)

    response = await place(server, memory)

    tensor = response.tensor("x_echo")
    assert memory == DATA + bytes(10)
    assert (tensor.shape, tensor.nbytes, tensor.item()) == ((SIZE,), SIZE, None)
    assert _core.live_counts()["buffers"] == 2  # of the texts that the model also sends
    with pytest.raises(BufferError):
        memoryview(tensor)


async def test_memory_is_released_after_the_response(start_echo):
    """A bytearray cannot grow while the core has it."""
    server = await start_echo(x=("UINT8", [-1]))
    memory = bytearray(SIZE)

    await place(server, memory)
    memory.append(0)

    assert memory == DATA + b"\0"


@pytest.mark.parametrize("room", [0, 1, SIZE - 1])
async def test_memory_that_is_too_small(start_echo, room):
    """The request is invalid, whatever the backend makes of it, and the memory is released."""
    server = await start_echo(x=("UINT8", [-1]))
    memory = bytearray(room)

    with pytest.raises(errors.InvalidRequest, match=f"'x_echo' has {SIZE} bytes, .* {room} bytes"):
        await place(server, memory)

    memory.append(0)


async def test_read_only_memory(start_echo, nothing_left):
    """It is rejected before the core has the request."""
    server = await start_echo(x=("UINT8", [-1]))

    with pytest.raises(BufferError):
        await place(server, bytes(SIZE))
