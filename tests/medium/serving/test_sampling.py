import json
from typing import Any

import pytest
from pydantic import ValidationError

from openai_frontend.engines import sampling_parameters
from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.generation import RESERVED_ARGS, SamplingParams
from openai_frontend.parsing.output_format import PLAIN
from openai_frontend.serving.constraints.grammar import constraint
from openai_frontend.serving.request.sampling import (
    SamplingOptions,
    for_choice,
    sampling_params,
    token_budget,
)
from openai_frontend.serving.request.tools import NO_TOOLS
from schemas.completions import CompletionRequest
from schemas.sampling import SamplingFields
from tests.fast.serving.fake_model import FakeModel


def params(
    max_tokens: int | None = None, *, unsupported: str | None = None, **fields: Any
) -> SamplingParams:
    model = FakeModel(unsupported=frozenset({unsupported} if unsupported else ()))
    request = SamplingFields(model="m", **fields)
    asked = SamplingOptions(
        max_tokens=max_tokens,
        constraint=constraint(request, NO_TOOLS, PLAIN, reasoning_open=None),
    )
    return sampling_params(request, asked, model)


def test_empty_request_leaves_every_value_to_the_model():
    assert SamplingParams() == params()


@pytest.mark.parametrize(
    "key", ["01", " 1", "1.0", "1_0", "-0", "+1", "\u0661", "1e0", "", "9" * 20]
)
def test_other_spellings_of_a_token_id(key):
    """Of two, one would be ignored. The API and the engine's tensor read the same ids."""
    body = {"model": "m", "prompt": "hi", "logit_bias": {key: 1.0}}
    with pytest.raises(ValidationError, match="valid integer"):
        CompletionRequest.model_validate_json(json.dumps(body))
    with pytest.raises(ValueError, match="logit_bias"):
        sampling_parameters.read({"logit_bias": {key: 1.0}})


@pytest.mark.parametrize("key", ["0", "7", str(2**31 - 1)])
def test_token_id_as_a_name(key):
    body = {"model": "m", "prompt": "hi", "logit_bias": {key: 1.0}}
    request = CompletionRequest.model_validate_json(json.dumps(body))

    assert request.logit_bias == {int(key): 1.0}
    assert sampling_parameters.read({"logit_bias": {key: 1.0}})[0].logit_bias == {int(key): 1.0}


@pytest.mark.parametrize("value", [1, "x", 1.5, True, [1]])
@pytest.mark.parametrize("name", sorted(RESERVED_ARGS))
def test_arguments_of_the_gateway_are_refused_in_vllm_xargs(name, value):
    """They control the engine's transfers of cache blocks. No backend gets one from a client."""
    with pytest.raises(InvalidRequest) as refused:
        params(vllm_xargs={"a": 1, name: value})

    assert (refused.value.status, refused.value.param) == (400, f"vllm_xargs.{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {300: 1.0}),
        ("allowed_token_ids", [1, 300]),
        ("stop_token_ids", [300]),
        ("logprob_token_ids", [300]),
    ],
)
def test_token_id_beyond_the_vocabulary_is_refused(name, value):
    """The error names the field that has it."""
    with pytest.raises(InvalidRequest) as refused:
        params(**{name: value})

    assert (name, "token id 300 is out of range") == (
        refused.value.param,
        refused.value.message.partition(": ")[2].partition(";")[0],
    )


def test_top_p_of_zero_becomes_top_k_of_one():
    """OpenAI's `top_p` of 0 selects the likeliest token."""
    assert SamplingParams(top_k=1) == params(top_p=0.0)


def test_field_without_a_tensor_is_refused():
    """The server does not drop it."""

    with pytest.raises(InvalidRequest) as refused:
        params(unsupported="seed", seed=1)

    assert (refused.value.param, refused.value.code) == ("seed", "unsupported_parameter")


NEUTRAL: dict[str, Any] = {
    "min_tokens": 0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "stop": [],
    "stop_token_ids": [],
    "ignore_eos": False,
    "include_stop_str_in_output": False,
    "bad_words": [],
    "logit_bias": {},
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
}


@pytest.mark.parametrize("field", NEUTRAL)
def test_neutral_value_of_an_unsupported_field_is_dropped(field):
    """The model does not get the field."""
    assert params(unsupported=field, **{field: NEUTRAL[field]}) == SamplingParams()


def test_min_tokens_above_max_tokens_are_refused():
    with pytest.raises(InvalidRequest) as refused:
        params(5, min_tokens=6)

    assert refused.value.param == "min_tokens"


SEEDS = [
    (7, 0, 7),
    (7, 2, 9),
    (-1, 1, 0),
    (2**63 - 1, 1, -(2**63)),
    (2**63 - 2, 3, -(2**63) + 1),
    (None, 2, None),
]


@pytest.mark.parametrize(("seed", "choice", "expected"), SEEDS)
def test_each_choice_has_its_own_seed(seed, choice, expected):
    """Seeds increase by one per choice and wrap within 64 bits."""
    assert expected == for_choice(SamplingParams(seed=seed), choice).seed


ROOM = [
    (None, 10, 100, 90),
    (None, 99, 100, 1),
    (90, 10, 100, 90),
    (1, 10, 100, 1),
    (1000, 10, None, 1000),
    (None, 10, None, None),
]


@pytest.mark.parametrize(("max_tokens", "prompt_tokens", "context", "expected"), ROOM)
def test_max_tokens_must_fit_the_context(max_tokens, prompt_tokens, context, expected):
    """Without it, the answer may fill the context."""
    room = token_budget(max_tokens, prompt_tokens=prompt_tokens, context=context, param="messages")

    assert expected == room


@pytest.mark.parametrize(("max_tokens", "prompt_tokens"), [(91, 10), (None, 100), (1, 5000)])
def test_prompt_and_answer_beyond_the_context_are_refused(max_tokens, prompt_tokens):
    with pytest.raises(ContextLengthExceeded):
        token_budget(max_tokens, prompt_tokens=prompt_tokens, context=100, param="prompt")


def test_context_error_has_openai_s_message():
    """It includes the numbers. Clients search for its text."""

    with pytest.raises(ContextLengthExceeded) as refused:
        token_budget(100, prompt_tokens=2000, context=2048, param="messages")

    assert refused.value.message == (
        "This model's maximum context length is 2048 tokens. However, you requested 2100 tokens "
        "(2000 in the messages, 100 in the completion). "
        "Please reduce the length of the messages or completion."
    )
    assert (refused.value.param, refused.value.code) == ("messages", "context_length_exceeded")
