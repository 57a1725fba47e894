"""Answers of zero tokens from a model that always generates one."""

from typing import Any

import orjson
import pytest

from openai_frontend.contracts import ZeroTokens
from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    TokenCounts,
)
from tests.fast.contracts.recorded import INPROCESS, NVIDIA_VLLM, RecordedOutputs

CONTRACTS = [ZeroTokens(VLLMContract(config)) for config in (INPROCESS, NVIDIA_VLLM)]
every = pytest.mark.parametrize("contract", CONTRACTS, ids=["in-process", "NVIDIA's"])


def request(**params: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        prompt="a",
        prompt_token_ids=[1],
        sampling_params=SamplingParams(**params),
        stream=True,
    )


def last(**values: Any) -> RecordedOutputs:
    told = {"finish_reason": b"stop", "num_input_tokens": 1, "num_output_tokens": 1}
    return RecordedOutputs(final=True, **{**told, **values})


@every
def test_requests_one_token(contract: ZeroTokens) -> None:
    """Exactly one, whatever other token limits the request has."""

    inputs = contract.encode(request(max_tokens=0, min_tokens=4, seed=1))
    assert orjson.loads(inputs["sampling_parameters"][2][4:]) == {"max_tokens": 1, "seed": 1}


@every
def test_drops_the_token(contract: ZeroTokens) -> None:
    """Its text, id, logprobs and finish reason are not in the answer."""

    decode = contract.decoder(request(max_tokens=0, logprobs=0))
    outputs = last(
        text_output=b"x",
        token_ids=[7],
        stop_reason=b"7",
        logprobs=b'[{"7":{"logprob":-1.0}}]',
    )
    assert decode(outputs) == CompletionDelta(finish_reason="length", counts=TokenCounts(1, 0, 0))


@every
def test_only_the_last_response_has_a_finish_reason(contract: ZeroTokens) -> None:
    decode = contract.decoder(request(max_tokens=0))
    assert decode(RecordedOutputs(text_output=b"x")) == CompletionDelta()


def test_keeps_prompt_logprobs() -> None:
    """They are the purpose of such a request."""

    decode = CONTRACTS[0].decoder(request(max_tokens=0, prompt_logprobs=0))
    delta = decode(last(prompt_logprobs=b'[null,{"5":{"logprob":-1.0}}]'))
    assert delta.prompt_logprobs == [None, {5: {"logprob": -1.0}}]


@every
@pytest.mark.parametrize("max_tokens", [None, 1, 5])
def test_other_requests_are_unchanged(contract: ZeroTokens, max_tokens: int | None) -> None:
    """The wrapped contract's own decoder is used, at no extra cost."""

    inner = contract._contract
    asked = request(max_tokens=max_tokens)
    assert contract.encode(asked) == inner.encode(asked)
    decoders = [each.decoder(asked) for each in (contract, inner)]
    kinds = [getattr(each, "func", each) for each in decoders]  # some keep state of a request
    assert kinds[0] == kinds[1]


@every
def test_supported_fields_are_unchanged(contract: ZeroTokens) -> None:
    for field in ("prompt_logprobs", "logit_bias", "stop"):
        assert contract.supports(field) == contract._contract.supports(field)
