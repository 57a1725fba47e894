"""Requests to a vLLM model of the core, without HTTP."""

from collections.abc import Sequence
from typing import Any

from openai_frontend.contracts import Contract, ZeroTokens
from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    TokenCounts,
    merge_deltas,
)
from openai_frontend.triton import ResponseStream, Server

REQUEST_FIELDS = ("stream", "return_token_ids", "priority", "cache_salt")


def request(prompt: str | Sequence[int], **options: Any) -> GenerationRequest:
    """Return a request, streaming by default. `options` are its fields or sampling parameters."""
    fields = {name: options.pop(name) for name in REQUEST_FIELDS if name in options}
    return GenerationRequest(
        request_id="test",
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=None if isinstance(prompt, str) else prompt,
        sampling_params=SamplingParams(**{"temperature": 0.0, **options}),
        **{"stream": True, **fields},
    )


def contract(server: Server, model: str) -> Contract:
    """The contract that the gateway would select for the model."""
    return ZeroTokens(VLLMContract(server.model_config(model), logprob_arrays=True))


def send(server: Server, model: str, prompt: str | Sequence[int], **options: Any) -> ResponseStream:
    """Start a request; `options` are those of `request`."""
    inputs = contract(server, model).encode(request(prompt, **options))
    return server.infer(model, inputs, request_id="test")


async def collect(
    server: Server, model: str, stream: ResponseStream, asked: GenerationRequest | None = None
) -> list[CompletionDelta]:
    """Return all deltas of a request."""
    every = GenerationRequest(request_id="test", return_token_ids=True)
    decode = contract(server, model).decoder(asked or every)
    return [decode(response) async for burst in stream for response in burst]


async def answer(
    server: Server, model: str, prompt: str | Sequence[int], **options: Any
) -> CompletionDelta:
    """Return the whole answer as one delta."""
    asked = request(prompt, **options)
    inputs = contract(server, model).encode(asked)
    stream = server.infer(model, inputs, request_id="test")
    return merge_deltas(await collect(server, model, stream, asked))


def completion_tokens(delta: CompletionDelta) -> int:
    """The token count that came with the end of the answer."""
    assert isinstance(delta.counts, TokenCounts)
    return delta.counts.completion_tokens
