"""The tensors of a request to an in-process model, and its responses."""

import json
import struct
from collections.abc import Sequence
from typing import Any

from openai_frontend.triton import InferenceResponse, ResponseStream, Server
from openai_frontend.triton.responses import TensorInput


def text(*values: str | bytes) -> TensorInput:
    """A STRING[n] tensor."""
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    data = b"".join(struct.pack("<I", len(value)) + value for value in encoded)
    return "BYTES", (len(values),), data


def flag(value: bool = True) -> TensorInput:
    """A BOOL[1] tensor."""
    return "BOOL", (1,), bytes([value])


def number(value: int) -> TensorInput:
    """An INT32[1] tensor."""
    return "INT32", (1,), struct.pack("<i", value)


def generation(
    prompt: str = "hello there", *, stream: bool = True, flags: Sequence[str] = (), **sampling: Any
) -> dict[str, TensorInput]:
    """The inputs of a generation; `flags` names BOOL inputs that are set."""
    return {
        "text_input": text(prompt),
        "stream": flag(stream),
        "sampling_parameters": text(json.dumps(sampling)),
        **{name: flag() for name in flags},
    }


def generate(server: Server, tokens: int, *, model: str = "mock") -> ResponseStream:
    """A stream of `tokens` tokens."""
    return server.infer(model, generation(max_tokens=tokens))


async def collect(
    stream: ResponseStream, into: list[InferenceResponse] | None = None
) -> list[InferenceResponse]:
    """Collects all responses of a stream; `into` also has those before an error."""
    responses = [] if into is None else into
    async for burst in stream:
        responses.extend(burst)
    return responses


async def count(stream: ResponseStream) -> int:
    """The number of responses of a stream, without keeping any."""
    number = 0
    async for burst in stream:
        number += len(burst)
    return number
