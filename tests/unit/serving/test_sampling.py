from typing import Any

import pytest

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.generation import SamplingParams
from openai_frontend.parsing.output_format import PLAIN
from openai_frontend.serving.constraints.grammar import constraint
from openai_frontend.serving.request.sampling import (
    SamplingOptions,
    for_choice,
    sampling_params,
    token_budget,
)
from openai_frontend.serving.request.tools import NO_TOOLS
from schemas.sampling import SamplingFields
from tests.unit.serving.fake_model import FakeModel


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


def test_nothing_said():
    """A request that says nothing leaves every value to the model."""
    assert SamplingParams() == params()


SAID = [
    {"temperature": 0.0},
    {"top_p": 0.5},
    {"top_k": -1},
    {"min_p": 0.1},
    {"presence_penalty": -2.0},
    {"frequency_penalty": 2.0},
    {"repetition_penalty": 1.1},
    {"seed": -1},
    {"stop_token_ids": [1, 2]},
    {"ignore_eos": True},
    {"min_tokens": 3},
    {"include_stop_str_in_output": True},
    {"bad_words": ["no"]},
    {"allowed_token_ids": [1]},
    {"logit_bias": {5: -100.0}},
    {"logprob_token_ids": [3]},
    {"skip_special_tokens": False},
    {"spaces_between_special_tokens": False},
    {"thinking_token_budget": 0},
]


@pytest.mark.parametrize("fields", SAID)
def test_same_name_same_value(fields):
    """vLLM's fields, and OpenAI's of the same meaning, pass as they are."""
    assert SamplingParams(**fields) == params(**fields)


def test_repetition_detection():
    """vLLM's repetition detection passes whole."""
    detection = {"max_pattern_size": 5, "min_pattern_size": 0, "min_count": 3}

    assert detection == params(repetition_detection=detection).repetition_detection


def test_vllm_xargs():
    """What the request says to the engine's plug-ins passes as the engine's extra_args."""
    assert params(vllm_xargs={"a": [1]}).extra_args == {"a": [1]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {300: 1.0}),
        ("allowed_token_ids", [1, 300]),
        ("stop_token_ids", [300]),
        ("logprob_token_ids", [300]),
    ],
)
def test_token_that_the_model_does_not_have(name, value):
    """A token id beyond the vocabulary is refused by the field that holds it."""
    with pytest.raises(InvalidRequest) as refused:
        params(**{name: value})

    assert (name, "the model has no token 300") == (
        refused.value.param,
        refused.value.message.partition(": ")[2].partition(";")[0],
    )


RENAMED = [
    ("extra_args", {"vllm_xargs": {"a": 1}}, "vllm_xargs"),
    ("structured_outputs", {"response_format": {"type": "json_object"}}, "response_format"),
    ("structured_outputs", {"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ("structured_outputs", {"guided_regex": "a"}, "guided_regex"),
]


@pytest.mark.parametrize(("field", "fields", "param"), RENAMED)
def test_refusal_names_the_request_field(field, fields, param):
    """A refusal names the field as the client knows it."""
    with pytest.raises(InvalidRequest) as refused:
        params(unsupported=field, **fields)

    assert param == refused.value.param


@pytest.mark.parametrize(("stop", "expected"), [("a", ["a"]), (["a", "b"], ["a", "b"]), (None, ())])
def test_stop(stop, expected):
    """Stop texts are a list, whichever form they came in."""
    assert expected == params(stop=stop).stop


def test_top_p_of_zero():
    """OpenAI's top_p of 0 is the likeliest token, which vLLM calls top_k 1."""
    assert SamplingParams(top_k=1) == params(top_p=0.0)


def test_unsupported_field_is_refused():
    """A field that the model's tensors cannot carry is refused, not dropped."""

    with pytest.raises(InvalidRequest) as refused:
        params(unsupported="seed", seed=1)

    assert (refused.value.param, refused.value.code) == ("seed", "unsupported_parameter")


def test_unsupported_field_that_is_not_used():
    """What the request does not use, the model need not support."""
    assert params(unsupported="seed", seed=None, temperature=1.0).temperature == 1.0


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
    """The model is not sent the field at all."""
    assert params(unsupported=field, **{field: NEUTRAL[field]}) == SamplingParams()


def test_min_tokens_above_max_tokens():
    """More tokens at least than at most is refused."""

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
def test_seed_of_choice(seed, choice, expected):
    """Choices count their seeds up, and stay within 64 bits."""
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
def test_room_for_answer(max_tokens, prompt_tokens, context, expected):
    """Without max_tokens the answer may fill the context; with it, it must fit."""
    room = token_budget(max_tokens, prompt_tokens=prompt_tokens, context=context, param="messages")

    assert expected == room


@pytest.mark.parametrize(("max_tokens", "prompt_tokens"), [(91, 10), (None, 100), (1, 5000)])
def test_no_room_for_answer(max_tokens, prompt_tokens):
    """Prompt and answer together must fit the context."""

    with pytest.raises(ContextLengthExceeded):
        token_budget(max_tokens, prompt_tokens=prompt_tokens, context=100, param="prompt")


def test_no_room_is_told_in_numbers():
    """The message has OpenAI's words, which clients search for, and the numbers."""

    with pytest.raises(ContextLengthExceeded) as refused:
        token_budget(100, prompt_tokens=2000, context=2048, param="messages")

    assert refused.value.message == (
        "This model's maximum context length is 2048 tokens. However, you requested 2100 tokens "
        "(2000 in the messages, 100 in the completion). "
        "Please reduce the length of the messages or completion."
    )
    assert (refused.value.param, refused.value.code) == ("messages", "context_length_exceeded")
