"""Adds `max_tokens: 0` to any contract: asks the engine for one token and drops it.

Engines refuse to generate no tokens.
"""

from collections.abc import Callable
from dataclasses import replace

from openai_frontend.contracts.contract import Contract, Outputs, TensorInput
from openai_frontend.generation import CompletionDelta, GenerationRequest


class ZeroTokens:
    """A contract for which `max_tokens` may be 0: the prompt is read, and nothing is said."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self.supports = contract.supports
        self.derives = contract.derives
        self.extra_args = contract.extra_args

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        """The inputs of one request, for a token more where none is wanted."""
        return self._contract.encode(_of_a_token(request))

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """The contract's own decoder where there is an answer."""
        decode = self._contract.decoder(_of_a_token(request))
        if request.sampling_params.max_tokens != 0:
            return decode
        return lambda outputs: _of_the_prompt(decode(outputs))

    def text_output(self, request: GenerationRequest) -> str | None:
        """None where no text is wanted."""
        if request.sampling_params.max_tokens == 0:
            return None
        return self._contract.text_output(request)


def _of_a_token(request: GenerationRequest) -> GenerationRequest:
    params = request.sampling_params
    if params.max_tokens != 0:
        return request
    # vLLM refuses a min_tokens above max_tokens; a first token that ends the text is no matter.
    return replace(request, sampling_params=replace(params, max_tokens=1, min_tokens=0))


def _of_the_prompt(delta: CompletionDelta) -> CompletionDelta:
    """What the delta says of the prompt; the answer's length is what ends it, whatever else did."""
    return CompletionDelta(
        finish_reason=None if delta.finish_reason is None else "length",
        counts=delta.counts and replace(delta.counts, completion_tokens=0),
        prompt_logprobs=delta.prompt_logprobs,
    )
