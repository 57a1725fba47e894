"""The fields of Anthropic's requests: which are honoured, accepted or refused."""

from typing import Any

import orjson
import pytest

from openai_frontend.errors import ContextLengthExceeded, InvalidRequest
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.conversation import Conversations
from openai_frontend.serving.dialects.messages.reader import MessageJob, Messages
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.request.field_policy import FieldPolicy, UnknownFieldsPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.request_body import BodyReader
from schemas.messages import CountTokensRequest, MessagesRequest
from tests.coding_agents import recording
from tests.coding_agents.table import BY_ID
from tests.fast.serving.fake_model import FakeModel, admission

READER, COUNTED = BodyReader(MessagesRequest), BodyReader(CountTokensRequest)
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL: dict[str, Any] = {"name": "f", "description": "d", "input_schema": SCHEMA}
SEARCH = {"type": "web_search_20260318", "name": "web_search"}


def messages(policy: UnknownFieldsPolicy = "reject") -> Messages:
    conversations = Conversations(InferenceLimits(), admission())
    return Messages(conversations, FieldPolicy(policy))


def thinking_model(**options: Any) -> FakeModel:
    """A model of Qwen3's family."""
    variables = frozenset({"tools", "enable_thinking"})
    return FakeModel(
        output_format=OutputFormat(family=BY_NAME["qwen3"]),
        **{"template_variables": variables, **options},
    )


def body(**fields: Any) -> bytes:
    return orjson.dumps({"messages": HI, "max_tokens": 9, **fields})


async def read(sent: dict[str, Any]) -> MessageJob:
    asked = READER.parse(orjson.dumps(sent))
    return await messages().prepare(asked, thinking_model())  # type: ignore[arg-type]


async def prepare(
    model: FakeModel | None = None, *, policy: UnknownFieldsPolicy = "reject", **fields: Any
) -> MessageJob:
    asked = READER.parse(body(**fields))
    return await messages(policy).prepare(asked, model or thinking_model())  # type: ignore[arg-type]


honours, accepts = pytest.mark.honours, pytest.mark.accepts
SAMPLING: list[tuple[dict[str, Any], str, Any]] = [
    ({"max_tokens": 5}, "max_tokens", 5),
    ({"temperature": 0.5}, "temperature", 0.5),
    ({"top_p": 0.5}, "top_p", 0.5),
    ({"top_k": 7}, "top_k", 7),
    ({"stop_sequences": ["a", "b"]}, "stop", ["a", "b"]),
    ({"stop_sequences": []}, "stop", ()),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000},
        "thinking_token_budget",
        1024,
    ),
]


@honours(*(f"messages.{next(iter(fields))}" for fields, _, _ in SAMPLING))
@honours("messages.thinking.enabled", "messages.thinking.enabled.budget_tokens")
@pytest.mark.parametrize(("fields", "name", "value"), SAMPLING, ids=str)
async def test_sampling_field_reaches_the_model(fields, name, value):
    [request] = (await prepare(**fields)).job.requests

    assert getattr(request.sampling_params, name) == value


@honours("messages.stream")
@pytest.mark.parametrize("stream", [True, False])
async def test_stream_reaches_the_model(stream):
    [request] = (await prepare(stream=stream)).job.requests

    assert request.stream is stream


@honours("messages.output_config", "messages.output_config.format")
@honours("messages.output_config.format.schema")
async def test_schema_of_the_output_becomes_a_constraint():
    form = {"type": "json_schema", "schema": SCHEMA}

    [request] = (await prepare(FakeModel(), output_config={"format": form})).job.requests

    assert request.sampling_params.structured_outputs.json == SCHEMA


ACCEPTED: list[dict[str, Any]] = [
    {"metadata": {"user_id": "u"}},
    {"service_tier": "auto"},
    {"speed": "fast"},
    {"inference_geo": "us"},
    {"container": None},
    {"diagnostics": {"previous_message_id": None}},
    {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    {"user_profile_id": "p"},
    {"workspace_id": "w"},
    {"cache_control": {"type": "ephemeral"}},
    {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
    {"mcp_servers": []},
    {"tools": [{**TOOL, "type": "custom", "eager_input_streaming": True, "defer_loading": True,
                "input_examples": [{}], "cache_control": {"type": "ephemeral"}}]},
]  # fmt: skip


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
async def test_field_without_effect_is_accepted(fields):
    """Also by a server that refuses unknown fields."""
    assert len((await prepare(**fields)).job.requests) == 1


THINKING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
    ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
    ({"thinking": {"type": "between_tools"}}, {"enable_thinking": True}),
    ({"thinking": {"type": "adaptive", "display": "updates"}}, {"enable_thinking": True}),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000},
     {"enable_thinking": True}),
    ({"output_config": {"effort": "low"}}, {"enable_thinking": True}),
    ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
     {"enable_thinking": False}),
]  # fmt: skip


@honours(
    "messages.thinking.disabled", "messages.thinking.adaptive", "messages.thinking.between_tools"
)
@pytest.mark.parametrize(("fields", "variables"), THINKING, ids=str)
async def test_thinking_switches_the_template(fields, variables):
    model = thinking_model()

    await prepare(model, **fields)

    assert model.rendered[0][1]["template_kwargs"] == variables


@honours("messages.output_config.effort")
async def test_effort_is_clamped_and_reported():
    """To the nearest value that the template accepts."""
    model = thinking_model(
        template_variables=frozenset({"reasoning_effort"}), template_values=frozenset({"high"})
    )

    message = await prepare(model, policy="warn", output_config={"effort": "max"})

    assert model.rendered[0][1]["template_kwargs"] == {"reasoning_effort": "high"}
    assert message.job.adjusted == {"output_config.effort": "high"}


async def test_budget_of_a_model_without_budgets_is_ignored_and_reported():
    model = thinking_model(unsupported=frozenset({"thinking_token_budget"}))
    thinking = {"type": "enabled", "budget_tokens": 1024}

    message = await prepare(model, policy="warn", thinking=thinking, max_tokens=2000)

    assert message.job.requests[0].sampling_params.thinking_token_budget is None
    assert message.job.adjusted == {"thinking.budget_tokens": "ignored"}


CHOICES: list[tuple[Any, str, bool]] = [
    (None, "auto", True),
    ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
    ({"type": "any"}, "required", True),
    ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
    ({"type": "tool", "name": "f", "disable_parallel_tool_use": True}, "required", False),
    ({"type": "none"}, "none", True),
]


@honours(
    "messages.tool_choice",
    *(f"messages.tool_choice.{kind}" for kind in ("auto", "any", "tool", "tool.name", "none")),
    *(f"messages.tool_choice.{kind}.disable_parallel_tool_use" for kind in ("auto", "any", "tool")),
)
@pytest.mark.parametrize(("choice", "mode", "parallel"), CHOICES)
async def test_tool_choice(choice, mode, parallel):
    tools = (await prepare(tools=[TOOL], tool_choice=choice)).job.tools

    assert (tools.choice, tools.parallel) == (mode, parallel)


async def test_tools_in_the_form_of_templates():
    """Without members that have no effect."""
    model = thinking_model()

    await prepare(model, tools=[{**TOOL, "strict": True, "defer_loading": True}])

    function = {"name": "f", "description": "d", "parameters": SCHEMA}
    assert model.rendered[0][1]["tools"] == [{"type": "function", "function": function}]


LATER: dict[str, Any] = {**TOOL, "name": "later", "defer_loading": True}
REFERENCE = {"type": "tool_reference", "tool_name": "later"}
LOADED = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "later"}}
FOUND: dict[str, list[dict[str, Any]]] = {
    "in a result": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [REFERENCE]}]}],
    "in the system's message": [*HI, {"role": "system", "content": [LOADED]}],
}  # fmt: skip


def offered(job: CompletionJob, model: FakeModel) -> tuple[list[str], set[str]]:
    """The tools at the prompt's beginning, and those that may be called."""
    shown = model.rendered[-1][1]["tools"]
    return [tool["function"]["name"] for tool in shown], set(job.tools.functions)


@honours("messages.tools.custom.defer_loading")
@pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)
async def test_deferred_tool_is_in_the_prompt_where_it_was_found(found):
    """So Claude Code's search for tools leaves the cached prefix as it was."""
    model, tools = thinking_model(), [LATER, TOOL]
    before = offered((await prepare(model, tools=tools)).job, model)
    after = offered((await prepare(model, tools=tools, messages=[*HI, *found])).job, model)

    assert (before, after) == ((["f"], {"f"}), (["f"], {"f", "later"}))
    definition = {"description": "d", "name": "later", "parameters": SCHEMA}
    text = f"<function>{orjson.dumps(definition).decode()}</function>"
    assert [each["content"] for each in model.rendered[-1][0]][1:].count(text) == 1


@pytest.mark.parametrize("fields", [
    {"tools": [LATER]},
    {"tools": [LATER, {"type": "tool_search_tool_bm25_20251119", "name": "search"}, TOOL]},
    {"tools": [LATER, TOOL], "tool_choice": {"type": "tool", "name": "later"}},
], ids=["no other tool", "a server's search", "a required tool"])  # fmt: skip
async def test_deferred_tool_that_no_search_finds_is_offered_at_once(fields):
    model = thinking_model()

    shown, callable_ = offered((await prepare(model, policy="ignore", **fields)).job, model)

    assert "later" in shown
    assert "later" in callable_


@honours("messages.tools.custom.strict")
@pytest.mark.parametrize("strict", [True, False])
async def test_strict_tool_constrains_its_arguments(strict):
    [request] = (await prepare(tools=[{**TOOL, "strict": strict}])).job.requests

    assert (request.sampling_params.structured_outputs is not None) is strict


async def test_tools_that_no_client_runs_are_left_out():
    model = thinking_model()

    job = (await prepare(model, policy="ignore", tools=[SEARCH, TOOL])).job

    assert set(job.tools.functions) == {"f"}
    assert len(model.rendered[0][1]["tools"]) == 1


async def test_max_tokens_is_shortened_to_the_room():
    """Claude Code asks for its output limit, however long the prompt is."""
    model = FakeModel(max_model_len=10)

    [request] = (await prepare(model, max_tokens=32_000)).job.requests

    assert request.sampling_params.max_tokens == 8


async def test_prompt_that_is_too_long_has_the_words_that_clients_match():
    with pytest.raises(ContextLengthExceeded) as refused:
        await prepare(FakeModel(max_model_len=2), max_tokens=5)

    assert refused.value.message == "prompt is too long: 2 tokens > 2 maximum"


async def test_last_message_of_the_assistant_is_continued():
    model = FakeModel()

    await prepare(model, messages=[*HI, {"role": "assistant", "content": "Yes"}])

    _, options = model.rendered[0]
    assert (options["continue_final_message"], options["add_generation_prompt"]) == (True, False)


async def test_count_is_that_of_the_prompt():
    """Even if it exceeds the context."""
    model: Any = FakeModel(max_model_len=3)
    asked = COUNTED.parse(orjson.dumps({"messages": HI, "system": "12345"}))

    count = await messages().count(asked, model)

    assert (count, model.rendered[0][1]["within_context"]) == (7, False)
    assert model.requests == []


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
     "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "x"}}]}]},
     "messages[0].content[0].source.type"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "assistant", "content": [
        {"type": "tool_use", "id": "x", "name": "f", "input": "{}"}]}]},
     "messages[0].content[0].input"),
    ({"temperature": 1.5}, "temperature"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "x"}}, "thinking.type"),
    ({"output_config": {"effort": "x"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
     "output_config.format.schema.type"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].type"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "input_schema": {"type": "x"}, "strict": True}]},
     "tools[0].input_schema.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "x"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"surprise": 1}, "surprise"),
    ({"output_config": {"fromat": {}}}, "output_config.fromat"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}, "x": 1}}},
     "output_config.format.x"),
    ({"thinking": {"type": "adaptive", "x": 1}}, "thinking.x"),
    ({"tools": [SEARCH]}, "tools.web_search_20260318"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["guided_json", "regex", "response_format", "structured_outputs"])
async def test_constraint_of_other_apis_is_refused_whatever_the_policy(name):
    """The output would not match. Empty ones are accepted."""
    fields: dict[str, Any] = {name: {"json": {}}}
    with pytest.raises(InvalidRequest) as refused:
        await prepare(policy="ignore", **fields)

    assert refused.value.param == name
    await prepare(response_format={"type": "text"}, structured_outputs={}, guided_json=None)


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=str)
async def test_invalid_field_is_refused_by_name(fields, param):
    sent = {name: value for name, value in {"max_tokens": 9, **fields}.items() if value is not None}

    with pytest.raises(InvalidRequest) as refused:
        await read({"messages": HI, **sent})

    assert refused.value.param == param


async def test_tools_that_no_client_runs_are_left_out_and_named():
    message = await prepare(policy="ignore", tools=[TOOL, SEARCH])

    assert message.job.adjusted == {"tools.web_search_20260318": "ignored"}
    assert message.job.tools.allowed == {TOOL["name"]}


FORCED = [{"type": "tool", "name": "web_search"}, {"type": "any"}]


@pytest.mark.parametrize("choice", FORCED)
async def test_forced_tool_that_no_client_runs_is_refused(choice):
    with pytest.raises(InvalidRequest, match="which Anthropic runs or defines"):
        await prepare(policy="ignore", tools=[SEARCH], tool_choice=choice)


async def test_errors_of_sampling_have_this_apis_names():
    """The same code serves OpenAI's API."""
    model = thinking_model(unsupported=frozenset({"stop"}))

    with pytest.raises(InvalidRequest) as refused:
        await prepare(model, stop_sequences=["x"])

    assert (refused.value.param, "'stop_sequences'" in refused.value.message) == (
        "stop_sequences",
        True,
    )


RECORDED = [name for name, agent in BY_ID.items() if agent.api == "messages"]


@pytest.mark.parametrize("name", RECORDED)
async def test_recorded_requests_of_agents_are_read(name):
    """Every turn, with nothing that a strict server refuses."""
    requests = recording.requests(name)
    for request in requests:
        asked = READER.parse(orjson.dumps(request["body"]))

        message = await messages().prepare(asked, thinking_model())  # type: ignore[arg-type]

        assert message.job.requests[0].stream

    assert len(requests) >= 2
