"""What a backend may send that is neither text nor a tensor of any type."""

import asyncio

import pytest

from openai_frontend.triton import _core
from tests.core.triton import c_backends
from tests.core.triton.waiting import until

CONFIG = """
model_transaction_policy { decoupled: true }
input [{ name: "IN" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "OUT" data_type: TYPE_INT32 dims: [-1] }]
"""


@pytest.fixture
def raw_model(repository):
    """A model `raw` of raw_backend.c."""
    c_backends.write(repository, "raw", CONFIG)


@pytest.fixture
async def responses(raw_model, start_server):
    """The responses of raw_backend.c."""
    server = await start_server()
    await server.load_model("raw")
    stream = server.infer("raw", {"IN": ("INT32", (1,), b"\0\0\0\0")})
    await until(lambda: stream.finished)
    taken = stream._native.take()
    yield taken
    taken.clear()


async def test_text_that_is_not_utf8(responses):
    """In errors and parameters, U+FFFD stands for what cannot be decoded."""
    first, last = responses

    assert first.parameters == {"name\ufffd": "value\ufffd"}
    assert last.error == (1, "broken\ufffd")


async def test_tensor_without_a_datatype(responses):
    """It has no buffer, as the size of its elements is unknown."""
    tensor = responses[0].tensor("OUT")

    assert (tensor.dtype, tensor.nbytes) == ("INVALID", 4)
    with pytest.raises(BufferError, match="no datatype"):
        memoryview(tensor)


async def test_error_of_the_core_that_is_not_utf8(repository, start_server):
    """A call of the core that fails raises it, with U+FFFD for what cannot be decoded."""
    server = await start_server()
    (repository / "bad" / "1").mkdir(parents=True)
    config = repository / "bad" / "config.pbtxt"

    for escaped, shown in [("none\\377", "none\ufffd"), ("none", "none")]:
        config.write_text(f'backend: "{escaped}"')
        with pytest.raises(_core.TritonError, match=f"'{shown}'"):
            await asyncio.to_thread(server._core.load_model, "bad", None, {})
