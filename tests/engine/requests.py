"""Requests to a vLLM model of the core, below HTTP."""

from collections.abc import Sequence
from typing import Any

from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.generation import CompletionDelta, GenerationRequest, SamplingParams
from openai_frontend.triton import ResponseStream, Server


def send(server: Server, model: str, prompt: str | Sequence[int], **options: Any) -> ResponseStream:
    """Start a streamed request; `options` are sampling parameters, `stream` and
    `return_token_ids`.
    """
    stream = options.pop("stream", True)
    return_token_ids = options.pop("return_token_ids", False)
    request = GenerationRequest(
        request_id="test",
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=None if isinstance(prompt, str) else prompt,
        sampling_params=SamplingParams(**{"temperature": 0.0, **options}),
        stream=stream,
        return_token_ids=return_token_ids,
    )
    contract = VLLMContract(server.model_config(model))
    return server.infer(model, contract.encode(request), request_id="test")


async def collect(server: Server, model: str, stream: ResponseStream) -> list[CompletionDelta]:
    """Return all deltas of a request."""
    contract = VLLMContract(server.model_config(model))
    return [contract.decode(response) async for burst in stream for response in burst]


async def answer(
    server: Server, model: str, prompt: str | Sequence[int], **options: Any
) -> CompletionDelta:
    """Return the whole answer as one delta, whose counts are the sums."""
    deltas = await collect(server, model, send(server, model, prompt, **options))
    last = deltas[-1]
    return CompletionDelta(
        "".join(delta.text for delta in deltas),
        [token for delta in deltas for token in delta.token_ids],
        last.finish_reason,
        last.stop_reason,
        last.counts,
        [entry for delta in deltas for entry in delta.logprobs or ()] or None,
    )
