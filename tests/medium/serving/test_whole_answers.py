"""Complete answers are rendered without pydantic models. Their bytes must equal the models' own."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from openai_frontend.generation import CompletionDelta, TokenCounts
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.dialects import chat, completions
from schemas.chat_completions import ChatCompletion
from schemas.completions import Completion
from tests.examples import scaled
from tests.fast.serving import test_completions
from tests.fast.serving.fake_model import FakeModel
from tests.medium.serving import test_chat

# Every kind of character that JSON escapes, then any.
AWKWARD = 'a"\\/\n\r\t\0\x1f\x7f\x85\xe9\u2028\u2029\ufeff\U0001f600'
texts = st.text(AWKWARD) | st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs"]))
counts = st.integers(0, 2**40)
logprobs = st.floats(-1e4, 0.0)


def answer(text: str, counted: TokenCounts, logprob: float) -> CompletionDelta:
    """A whole answer in one delta of one token, with every optional field."""
    position = {7: {"logprob": logprob, "rank": 1, "decoded_token": text}}
    return CompletionDelta(
        text, [7], "stop", counts=counted, logprobs=[position], prompt_logprobs=[None, position]
    )


def as_the_schema_writes(schema: type[BaseModel], answered: dict[str, Any]) -> bytes:
    return schema.model_validate(answered).model_dump_json(exclude_unset=True).encode()


IN_BOTH: list[dict[str, Any]] = [
    {},
    {"n": 2, "seed": 1},
    {"return_token_ids": True, "service_tier": "auto"},
    {"prompt_logprobs": 1, "return_token_ids": True},
]
WITHIN = settings(
    max_examples=scaled(25), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize(
    "fields",
    [*IN_BOTH, {"metadata": {"\u2028": "\xe9"}}, {"logprobs": True, "top_logprobs": 1}],
    ids=str,
)
@WITHIN
@given(text=texts, counted=st.builds(TokenCounts, counts, counts, counts), logprob=logprobs)
async def test_chat_completion_bytes_equal_the_model_dump(fields, text, counted, logprob):
    model = FakeModel([[answer(text, counted, logprob)]])

    answered = await chat.complete(await test_chat.prepare(model, **fields))

    assert as_the_schema_writes(ChatCompletion, answered) == orjson.dumps(answered)


FUNCTION = {"name": "f", "parameters": {"type": "object"}}
OFFERED: list[dict[str, Any]] = [
    {"tools": [{"type": "function", "function": FUNCTION}]},
    {"tools": [{"type": "custom", "custom": {"name": "f"}}], "include_reasoning": False},
    {"functions": [FUNCTION], "n": 2},
    {"logprobs": True},
]


@pytest.mark.parametrize("fields", OFFERED, ids=str)
@WITHIN
@given(text=texts, counted=st.builds(TokenCounts, counts, counts, counts))
async def test_parsed_chat_completion_bytes_equal_the_model_dump(fields, text, counted):
    """The answer has calls and reasoning."""
    call = json.dumps({"name": "f", "arguments": {"input": text}})
    said = f"<think>{text}</think>{text}<tool_call>{call}</tool_call>"
    model = FakeModel(
        [[answer(said, counted, -1.0)]],
        output_format=OutputFormat(family=BY_NAME["qwen3"]),
        template_variables=frozenset({"tools"}),
    )

    answered = await chat.complete(await test_chat.prepare(model, **fields))

    assert as_the_schema_writes(ChatCompletion, answered) == orjson.dumps(answered)


@pytest.mark.parametrize("fields", [*IN_BOTH, {"logprobs": 1}, {"echo": True}], ids=str)
@WITHIN
@given(text=texts, counted=st.builds(TokenCounts, counts, counts, counts), logprob=logprobs)
async def test_completion_bytes_equal_the_model_dump(fields, text, counted, logprob):
    model = FakeModel([[answer(text, counted, logprob)]])

    answered = await completions.complete(await test_completions.prepare(model, **fields))

    assert as_the_schema_writes(Completion, answered) == orjson.dumps(answered)
