"""For each tensor contract, each field of a request is honoured or refused by its name."""

from collections.abc import Mapping
from typing import Any

import pytest

from openai_frontend.contracts import Contract
from openai_frontend.contracts.select import ContractOptions, select_contracts
from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.serving.dialects.completions import Completions
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from tests.fast.contracts.recorded import (
    BLS,
    CONSTRAINED_LLMAPI,
    ENSEMBLE,
    INPROCESS,
    LLMAPI,
    NVIDIA_VLLM,
    PYTHON,
    PYTHON_TENSORS,
    Letters,
)
from tests.fast.serving.fake_model import FakeModel, admission, chat_completions
from tests.fields import CONSTRAINTS, REQUEST, SAMPLING

CONFIGS: Mapping[str, tuple[dict[str, Any], dict[str, str]]] = {
    "in-process": (INPROCESS, {}),
    "vllm": (NVIDIA_VLLM, {}),
    "ensemble": (ENSEMBLE, {}),
    "bls": (BLS, {}),
    "llmapi": (LLMAPI, {}),
    "constrained llmapi": (CONSTRAINED_LLMAPI, {}),
    "python": (PYTHON, PYTHON_TENSORS),
}

# Field -> a request that uses it; the model gets these
TO_MODEL: Mapping[str, dict[str, Any]] = {
    **{next(iter(fields)): fields for fields, _, _ in reversed(CONSTRAINTS)},
    **{next(iter(fields)): fields for fields, _ in (*SAMPLING, *REQUEST)},
    "guided_whitespace_pattern": {
        "guided_json": {"type": "object"},
        "guided_whitespace_pattern": " ?",
    },
    "length_penalty": {"length_penalty": 2.0},
    "response_format": {"response_format": {"type": "json_object"}},
    "structured_outputs": {"structured_outputs": {"regex": "a"}},
    "use_beam_search": {"use_beam_search": True, "n": 2},
}
OF_COMPLETIONS = {
    "best_of": {"best_of": 2},
    "echo": {"echo": True, "logprobs": 0},
    "logprob_token_ids": {"logprobs": 0, "logprob_token_ids": [97]},
    "logprobs": {"logprobs": 0},
    "add_special_tokens": {"add_special_tokens": False},
}
OF_CHATS = {
    "echo": {"echo": True, "messages": [{"role": "assistant", "content": "ab"}]},
    "logprob_token_ids": {"logprobs": True, "logprob_token_ids": [97]},
    "logprobs": {"logprobs": True},
    "max_completion_tokens": {"max_completion_tokens": 5},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "add_special_tokens": {"add_special_tokens": True},
}

# Field -> a request that uses it; the gateway honours these itself for any model
HERE: Mapping[str, dict[str, Any]] = {
    "include_stop_str_in_output": {"stop": ["x"], "include_stop_str_in_output": True},
    "return_tokens_as_token_ids": {"return_tokens_as_token_ids": True},
    "n": {"n": 2},
    "stream": {"stream": True},
    "stream_interval": {"stream": True, "stream_interval": 4},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "service_tier": {"service_tier": "auto"},
    "metadata": {"metadata": {"a": "b"}},
    "truncation_side": {"truncation_side": "left"},
}
# Fields that do not affect the model: names, descriptions, or fields read elsewhere
NO_PART = {
    "model", "prompt", "messages", "user", "safety_identifier", "store", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "guided_decoding_backend", "suffix",
    "truncate_prompt_tokens", "modalities", "prediction", "verbosity", "reasoning_effort",
    "include_reasoning", "tools", "tool_choice", "parallel_tool_calls", "functions",
    "function_call", "documents", "add_generation_prompt", "continue_final_message",
    "chat_template_kwargs", "moderation",
}  # fmt: skip

COUNTS_ON = {"include_usage": True, "continuous_usage_stats": True}
_BEAMS = {"length_penalty", "use_beam_search"}
_FORMS = {
    "ebnf", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "regex",
    "guided_whitespace_pattern", "response_format", "structured_outputs",
}  # fmt: skip
_IDS = {
    "add_special_tokens", "allowed_token_ids", "logprob_token_ids", "return_token_ids",
    "stop_token_ids",
}  # fmt: skip
_VLLMS = {
    "cache_salt", "echo", "min_p", "priority", "prompt_logprobs", "repetition_detection",
    "skip_special_tokens", "spaces_between_special_tokens", "thinking_token_budget",
}  # fmt: skip
_BEYOND_LLMAPI = {"bad_words", "ignore_eos", "logit_bias", "min_tokens", "repetition_penalty"}
_PIPELINES = _VLLMS | _IDS | {"guided_whitespace_pattern", "top_logprobs", "vllm_xargs"}
_LLMAPI = _VLLMS | _BEAMS | _IDS | _FORMS | _BEYOND_LLMAPI | {
    "best_of", "include_stop_str_in_output", "logprobs", "top_logprobs"
}  # fmt: skip

# Contract -> the fields that it refuses; it honours all others
REFUSED: Mapping[str, set[str]] = {
    "in-process": _BEAMS,
    "vllm": _BEAMS | {
        "add_special_tokens", "cache_salt", "echo", "logit_bias", "logprob_token_ids", "priority",
        "prompt_logprobs", "repetition_detection", "return_token_ids", "thinking_token_budget",
    },
    "ensemble": _PIPELINES,
    "bls": _PIPELINES,
    "llmapi": _LLMAPI | {"vllm_xargs"},
    "constrained llmapi": _LLMAPI,
    "python": (_LLMAPI | {
        "frequency_penalty", "presence_penalty", "seed", "top_k", "top_p", "vllm_xargs"
    }) - {"include_stop_str_in_output"},
}  # fmt: skip

LIMITS = InferenceLimits(max_n=4, max_prompts=8, max_prompt_logprobs=150, max_output_tokens=3000)
COMPLETIONS = Completions(LIMITS, FieldPolicy("reject"), admission())
CHATS = chat_completions(LIMITS)


def contract_of(name: str) -> Contract:
    config, tensors = CONFIGS[name]
    chosen = select_contracts(
        config, options=ContractOptions(tensors=tensors), vocabulary=Letters()
    )
    assert chosen.generation is not None
    return chosen.generation


async def request_of(chat: bool, contract: Contract, fields: dict[str, Any]) -> GenerationRequest:
    """The request that a model of this contract gets for the first choice."""
    model = FakeModel(supports=contract.supports, max_model_len=100)
    if chat:
        body = {"model": "fake", "messages": [{"role": "user", "content": "ab"}], **fields}
        asked = ChatCompletionRequest.model_validate(body)
        answer = await CHATS.prepare(asked, model)  # type: ignore[arg-type]
    else:
        body = {"model": "fake", "prompt": "ab", **fields}
        completion = CompletionRequest.model_validate(body)
        answer = await COMPLETIONS.prepare(completion, model)  # type: ignore[arg-type]
    return answer.requests[0]


async def outcome(chat: bool, contract: Contract, field: str, fields: dict[str, Any]) -> str:
    """How one field is handled."""
    plain = contract.encode(await request_of(chat, contract, {}))
    try:
        request = await request_of(chat, contract, fields)
        inputs = contract.encode(request)
    except InvalidRequest as refused:
        param = refused.param or ""
        return "refused" if param.split(".")[0] in fields else f"refused: {param}"
    return "honoured" if inputs != plain or is_done_here(chat, contract, field) else "dropped"


def is_done_here(chat: bool, contract: Contract, field: str) -> bool:
    """Whether the gateway itself honours the field, so the model need not get it."""
    if field in HERE or (chat and field == "echo"):
        return True
    if field == "add_special_tokens":  # by its own tokenizer, if the model reads token ids
        return contract.supports("prompt_token_ids")
    return field == "stop" and "stop" in contract.derives


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
@pytest.mark.parametrize("name", CONFIGS)
async def test_each_field_is_honoured_or_refused_by_name(name: str, chat: bool) -> None:
    """The model gets it, the gateway applies it, or the answer is a 400. No field is dropped
    silently.
    """

    requests: dict[str, Any] = {**TO_MODEL, **HERE, **(OF_CHATS if chat else OF_COMPLETIONS)}
    refused = REFUSED[name] - ({"echo"} if chat else set())
    contract = contract_of(name)

    outcomes = {
        field: await outcome(chat, contract, field, fields) for field, fields in requests.items()
    }

    assert outcomes == {field: "refused" if field in refused else "honoured" for field in requests}


@pytest.mark.parametrize(
    ("kind", "own"), [(CompletionRequest, OF_COMPLETIONS), (ChatCompletionRequest, OF_CHATS)]
)
def test_every_field_has_its_case(kind: Any, own: dict[str, Any]) -> None:
    """A new request field must declare its handling for each contract."""

    assert set(kind.model_fields) - NO_PART <= {*TO_MODEL, *HERE, *own}


@pytest.mark.parametrize("name", CONFIGS)
async def test_documented_defaults_are_never_refused(name: str) -> None:
    """Clients send defaults explicitly. A default requires nothing of the model."""

    fields = {
        "temperature": 1, "top_p": 1, "n": 1, "presence_penalty": 0, "frequency_penalty": 0,
        "stop": [], "logit_bias": {}, "stream": False, "top_k": -1, "min_p": 0, "min_tokens": 0,
        "repetition_penalty": 1.0, "ignore_eos": False, "skip_special_tokens": True, "priority": 0,
    }  # fmt: skip
    contract = contract_of(name)
    assert contract.encode(await request_of(False, contract, fields))


@pytest.mark.parametrize(
    ("name", "fields", "param"),
    [
        ("ensemble", {"logprobs": 2}, "logprobs"),
        (
            "ensemble",
            {"logprobs": 0, "return_tokens_as_token_ids": True},
            "return_tokens_as_token_ids",
        ),
        ("ensemble", {"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs"),
        ("ensemble", {"prompt": [97, 98]}, "prompt"),
        ("bls", {"use_beam_search": True, "n": 2, "logprobs": 0}, "logprobs"),
        ("bls", {"vllm_xargs": {"return_context_logits": True}}, None),
        (
            "bls",
            {"stream": True, "vllm_xargs": {"return_context_logits": True}},
            "vllm_xargs.return_context_logits",
        ),
        ("llmapi", {"top_p": 0}, None),
        ("python", {"top_p": 0}, "top_p"),
        (
            "llmapi",
            {"stream": True, "stream_options": COUNTS_ON},
            "stream_options.continuous_usage_stats",
        ),
        ("vllm", {"stream": True, "stream_options": COUNTS_ON}, None),
        ("bls", {"stream": True, "stream_options": COUNTS_ON}, None),
        ("llmapi", {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ],
)
async def test_value_that_the_model_cannot_honour_is_refused(
    name: str, fields: dict[str, Any], param: str | None
) -> None:
    """A model can support a field without supporting each of its values."""

    contract = contract_of(name)
    try:
        contract.encode(await request_of(False, contract, fields))
        refused = None
    except InvalidRequest as error:
        refused = error.param
    assert refused == param
