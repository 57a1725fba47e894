"""Adds `max_tokens: 0` to any contract: asks the engine for one token and drops it.

Engines refuse to generate no tokens.
"""

from collections.abc import Callable
from dataclasses import replace

from openai_frontend.contracts import Contract, Outputs, TensorInput
from openai_frontend.generation import CompletionDelta, GenerationRequest


class ZeroTokens:
    """Wraps a contract so that `max_tokens` may be 0: it processes the prompt only."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self.supports = contract.supports
        self.derives = contract.derives
        self.extra_args = contract.extra_args

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        """The contract's inputs, with `max_tokens` 1 instead of 0."""
        return self._contract.encode(_for_one_token(request))

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """The contract's decoder, without the extra token."""
        decode = self._contract.decoder(_for_one_token(request))
        if request.sampling_params.max_tokens != 0:
            return decode
        return lambda outputs: _prompt_only(decode(outputs))

    def text_output(self, request: GenerationRequest) -> str | None:
        """None if `max_tokens` is 0."""
        if request.sampling_params.max_tokens == 0:
            return None
        return self._contract.text_output(request)


def _for_one_token(request: GenerationRequest) -> GenerationRequest:
    params = request.sampling_params
    if params.max_tokens != 0:
        return request
    # vLLM rejects a min_tokens above max_tokens. The first token may end the text.
    return replace(request, sampling_params=replace(params, max_tokens=1, min_tokens=0))


def _prompt_only(delta: CompletionDelta) -> CompletionDelta:
    """The delta's part about the prompt. The finish reason is always `length`."""
    return CompletionDelta(
        finish_reason=None if delta.finish_reason is None else "length",
        counts=delta.counts and replace(delta.counts, completion_tokens=0),
        prompt_logprobs=delta.prompt_logprobs,
    )
