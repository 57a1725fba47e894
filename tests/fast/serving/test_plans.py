"""What requests that differ only in their prompts share, and that it changes nothing."""

import dataclasses
import gc
import json
import weakref
from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.constraints import plugin
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.request.request_body import Plans
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from tests.fast.serving.fake_model import FakeModel
from tests.fast.serving.test_completions import COMPLETIONS
from tests.medium.serving.test_chat import CHAT

TOOL = {
    "type": "function",
    "function": {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {}}},
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sampling": {"temperature": 0.5, "stop": ["a"], "logit_bias": {"1": 2}, "seed": 3, "n": 2},
    "limit": {"max_tokens": 7, "logprobs": True, "top_logprobs": 2},
    "tools": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    "schema": {"response_format": SCHEMA},
    "effort": {"reasoning_effort": "low", "chat_template_kwargs": {"a": 1}},
}


def model(family: str = "qwen3", **options: Any) -> FakeModel:
    return FakeModel(
        output_format=OutputFormat(family=BY_NAME[family]),
        template_variables=frozenset({"tools", "reasoning_effort"}),
        max_model_len=500,
        **options,
    )


async def prepared(
    served: FakeModel, plans: Plans | None, *texts: str, **fields: Any
) -> CompletionJob:
    messages = [{"role": "user", "content": text} for text in texts]
    body = json.dumps({"messages": messages, **fields})
    request = ChatCompletionRequest.model_validate_json(body)
    return await CHAT.prepare(request, served, plans)  # type: ignore[arg-type]


def facts(job: CompletionJob) -> Any:
    """All of a job but ids, times and what each job makes anew."""

    def of(request: GenerationRequest) -> dict[str, Any]:
        own = {"request_id", "relay", "usage", "fallback"}
        names = [each.name for each in dataclasses.fields(request) if each.name not in own]
        return {name: getattr(request, name) for name in names}

    parser = None if job.parser is None else (job.tools, job.parser.include_reasoning)
    return [of(each) for each in job.requests], job.n, job.options, job.echo, job.adjusted, parser


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
async def test_jobs_are_those_of_requests_that_share_nothing(fields):
    """Of other lengths too, which decide the maximum output, and within reasoning or not."""
    served = model()
    plans = Plans()
    conversations = [("hello",), ("a", "b"), ("hello",), ("x" * 90,), ("<think>",), ("a", "b")]

    for texts in conversations:
        shared = await prepared(served, plans, *texts, **fields)
        assert facts(shared) == facts(await prepared(served, None, *texts, **fields))


COMPLETION_FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sampling": {"temperature": 0.5, "stop": ["a"], "logit_bias": {"1": 2}, "seed": 3, "n": 2},
    "limit": {"max_tokens": 7, "logprobs": 2, "best_of": 2},
    "unlimited": {"max_tokens": -1},
    "echo": {"echo": True, "logprobs": 1},
    "schema": {"structured_outputs": {"regex": "a+"}},
    "truncated": {"truncate_prompt_tokens": 3},
}
PROMPTS = ("hello", "a", ["a", "bb"], [1, 2], [[1], [2, 3, 4, 5]], "x" * 60, "", None)


async def completed(
    served: FakeModel, plans: Plans | None, prompt: Any, **fields: Any
) -> CompletionJob:
    request = CompletionRequest.model_validate_json(json.dumps({"prompt": prompt, **fields}))
    return await COMPLETIONS.prepare(request, served, plans)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", COMPLETION_FIELDS.values(), ids=COMPLETION_FIELDS)
async def test_completions_are_those_of_requests_that_share_nothing(fields):
    """Of any form of prompt, and of any length where that decides the maximum output."""
    served = model()
    plans = Plans()

    for prompt in PROMPTS:
        shared = await completed(served, plans, prompt, **fields)
        assert facts(shared) == facts(await completed(served, None, prompt, **fields)), prompt


async def test_completions_share_sampling_parameters():
    served = model()
    plans = Plans()
    jobs = [await completed(served, plans, prompt, max_tokens=5) for prompt in ("a", [1, 2])]

    first, second = (job.requests[0].sampling_params for job in jobs)

    assert first is second


async def test_prompts_are_checked_each_time():
    """Their form, number and ids depend on the prompt alone."""
    served = model()
    plans = Plans()
    await completed(served, plans, "a", suffix="b")

    with pytest.raises(InvalidRequest) as refused:
        await completed(served, plans, [1], suffix="b")
    assert refused.value.param == "suffix"
    with pytest.raises(InvalidRequest) as refused:
        await completed(served, Plans(), [10**9])
    assert refused.value.param == "prompt"


async def test_sampling_parameters_are_shared():
    """So that their tensor is made once."""
    served = model()
    plans = Plans()
    jobs = [await prepared(served, plans, text, max_tokens=5) for text in ("a", "bb")]

    first, second = (job.requests[0].sampling_params for job in jobs)

    assert first is second


async def test_each_model_has_its_own_plan():
    """The same body may be valid for one model only, and a reload replaces a model."""
    plans = Plans()
    await prepared(model(), plans, "a", temperature=0.5)

    with pytest.raises(InvalidRequest):
        await prepared(model(unsupported=frozenset({"temperature"})), plans, "a", temperature=0.5)


async def test_messages_are_checked_each_time():
    served = model()
    plans = Plans()
    await prepared(served, plans, "a")

    with pytest.raises(InvalidRequest) as refused:
        await prepared(served, plans, *"abcde")

    assert refused.value.param == "messages"


async def test_plan_keeps_no_tag_that_is_much_longer_than_its_request():
    """Some families' tags repeat a definition for each property that refers to it."""
    levels = {f"p{at}": {"type": "string", "enum": [f"value {at}"]} for at in range(30)}
    schema = {
        "type": "object",
        "$defs": {"large": {"type": "object", "properties": levels}},
        "properties": {f"a{at}": {"$ref": "#/$defs/large"} for at in range(60)},
    }
    function = {"name": "f", "strict": True, "parameters": schema}
    fields = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    served = model(family="glm45")
    plans = Plans()

    jobs = [await prepared(served, plans, text, **fields) for text in ("a", "b")]

    wanted = [job.requests[0].sampling_params.structured_outputs for job in jobs]
    assert [len(each.structural_tag or "") > 64 * 1024 for each in wanted if each] == [True] * 2
    [(_, plan)] = plans._of.values()
    assert (plan.constraints, plan.params) == ({}, {})


async def test_plugins_see_every_request(monkeypatch):
    """They may look at the prompt, so nothing of the constraint is kept."""
    seen: list[str] = []

    class Counting(plugin.ConstraintPlugin):
        def constraint(self, request: Any) -> None:
            chat = isinstance(request, ChatCompletionRequest)
            seen.append(request.messages[0]["content"] if chat else request.prompt)

    monkeypatch.setattr(plugin, "installed", lambda: (Counting(),))
    served = model()
    plans = Plans()
    for text in ("a", "b"):
        await prepared(served, plans, text)
    plans = Plans()
    for text in ("c", "d"):
        await completed(served, plans, text)

    assert seen == ["a", "b", "c", "d"]


async def test_plan_keeps_no_model_that_was_unloaded():
    """Its tokenizer takes megabytes."""
    served = model()
    plans = Plans()
    await prepared(served, plans, "a")
    prompts = weakref.ref(served.prompts)

    served.prompts = None
    gc.collect()

    assert prompts() is None
