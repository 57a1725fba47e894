"""Request fields reach the model as sampling parameters or in its chat template.

tests/vllm and tests/api show that the engines honour these parameters.
"""

from typing import Any

import pytest

from openai_frontend.generation import GenerationRequest, SamplingParams, StructuredOutputs
from tests.fields import CONSTRAINTS, JSON_SCHEMA, REQUEST, SAMPLING, SCHEMA

honours = pytest.mark.honours
ENDPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    "completions": ("/v1/completions", {"prompt": "hi"}),
}
# Fields of a response's place are not those of chats
RESPONSES = {"responses": ("/v1/responses", {"input": "hi"})}
_MOVED = {"max_tokens", "prompt_logprobs", "return_token_ids", "response_format"}
PREFIXES = (*ENDPOINTS, "responses")


def takes(prefix: str, fields: dict[str, Any]) -> bool:
    return prefix in ENDPOINTS or not fields.keys() & _MOVED


def paths(field: str, value: Any) -> list[str]:
    """The field and the fields inside it."""
    inner = value.items() if isinstance(value, dict) and field == "repetition_detection" else ()
    return [field, *(f"{field}.{name}" for name, _ in inner)]


def shown(rows: list[Any]) -> list[Any]:
    """Each row for all endpoints, with the mark of its field."""
    return [
        pytest.param(
            prefix, fields, expected or fields,
            marks=honours(*(f"{prefix}.{name}" for name in paths(*next(iter(fields.items()))))),
        )
        for prefix in PREFIXES
        for fields, expected in rows
        if takes(prefix, fields)
    ]  # fmt: skip


async def reached(world: Any, prefix: str, **fields: Any) -> GenerationRequest:
    """The request that the model receives."""
    model = world.model()
    path, required = (ENDPOINTS | RESPONSES)[prefix]
    response = await world.client.post(path, json={"model": "fake", **required, **fields})
    assert response.status_code == 200, response.text
    request: GenerationRequest = model.requests[0]
    return request


@pytest.mark.parametrize(("prefix", "fields", "expected"), shown(SAMPLING))
async def test_sampling_fields_reach_the_engine(world, prefix, fields, expected):
    """With the value of the request."""
    params = (await reached(world, prefix, **fields)).sampling_params

    assert {name: getattr(params, name) for name in expected} == expected


@pytest.mark.parametrize(("prefix", "fields", "expected"), shown(REQUEST))
async def test_fields_of_the_whole_request_reach_the_engine(world, prefix, fields, expected):
    """They are not sampling parameters."""
    request = await reached(world, prefix, **fields)

    assert {name: getattr(request, name) for name in expected} == expected


@honours("chat.logprob_token_ids", "completions.logprob_token_ids")
@pytest.mark.parametrize(("prefix", "logprobs"), [("chat", True), ("completions", 0)])
async def test_logprob_token_ids_reach_the_engine_with_logprobs(world, prefix, logprobs):
    request = await reached(world, prefix, logprobs=logprobs, logprob_token_ids=[3])

    assert request.sampling_params.logprob_token_ids == [3]


@honours("chat.n", "completions.n")
@pytest.mark.parametrize("prefix", ENDPOINTS)
async def test_each_choice_is_a_request_to_the_model(world, prefix):
    model = world.model()
    path, required = ENDPOINTS[prefix]

    response = await world.client.post(path, json={"model": "fake", **required, "n": 3})

    assert (len(response.json()["choices"]), len(model.requests)) == (3, 3)


@pytest.mark.parametrize(
    ("prefix", "fields", "expected"),
    [
        pytest.param(prefix, fields, kept, marks=honours(*(f"{prefix}.{name}" for name in names)))
        for prefix in PREFIXES
        for fields, kept, names in CONSTRAINTS
        if takes(prefix, fields)
    ],
)
async def test_constraint_of_the_request_reaches_the_engine(world, prefix, fields, expected):
    params = (await reached(world, prefix, **fields)).sampling_params

    assert params.structured_outputs == StructuredOutputs(**expected)


@pytest.mark.accepts(*(f"{prefix}.guided_decoding_backend" for prefix in PREFIXES))
@pytest.mark.parametrize("prefix", PREFIXES)
async def test_guided_decoding_backend_has_no_effect(world, prefix):
    """The engine chooses the library that compiles a grammar."""
    asked: dict[str, Any] = {"guided_regex": "a"}
    requests = [
        await reached(world, prefix, **asked, **more)
        for more in ({}, {"guided_decoding_backend": "xgrammar"})
    ]

    assert requests[0].sampling_params == requests[1].sampling_params


@pytest.mark.accepts(
    "chat.response_format.text",
    "chat.response_format.json_schema.name",
    "chat.response_format.json_schema.description",
    "chat.response_format.json_schema.strict",
    "completions.response_format.text",
    "completions.response_format.json_schema.name",
    "completions.response_format.json_schema.description",
    "completions.response_format.json_schema.strict",
)
@pytest.mark.parametrize("prefix", ENDPOINTS)
async def test_name_and_description_of_a_schema_have_no_effect(world, prefix):
    """They are for people. Every schema is enforced strictly; `text` is no constraint."""
    bare = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    full = {"type": "json_schema", "json_schema": JSON_SCHEMA}

    params: list[SamplingParams] = [
        (await reached(world, prefix, response_format=each)).sampling_params
        for each in (bare, full, {"type": "text"})
    ]

    assert params[0].structured_outputs == params[1].structured_outputs
    assert params[2].structured_outputs is None


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PARTS = [{"type": "text", "text": "hi"}]
REFUSAL = [{"type": "refusal", "refusal": "no"}]
IN_MESSAGES: list[tuple[dict[str, Any], list[str]]] = [
    ({"role": "developer", "content": "hi", "name": "n"}, ["developer.content", "developer.name"]),
    ({"role": "developer", "content": PARTS}, ["developer.content.text"]),
    ({"role": "system", "content": "hi", "name": "n"}, ["system.content", "system.name"]),
    ({"role": "system", "content": PARTS}, ["system.content.text"]),
    ({"role": "user", "content": "hi", "name": "n"}, ["user.content", "user.name"]),
    ({"role": "user", "content": PARTS}, ["user.content.text"]),
    ({"role": "assistant", "content": "hi", "name": "n"}, ["assistant.content", "assistant.name"]),
    ({"role": "assistant", "content": PARTS}, ["assistant.content.text"]),
    ({"role": "assistant", "content": REFUSAL}, ["assistant.content.refusal"]),
    ({"role": "assistant", "content": None, "tool_calls": [CALL]}, [
        "assistant.tool_calls", "assistant.tool_calls.function",
        "assistant.tool_calls.function.id", "assistant.tool_calls.function.name",
        "assistant.tool_calls.function.arguments",
    ]),
    ({"role": "assistant", "content": "", "refusal": "no"}, ["assistant.refusal"]),
    ({"role": "assistant", "content": "hi", "annotations": []}, ["annotations"]),
    ({"role": "assistant", "content": "hi", "reasoning": "r", "reasoning_content": "r"},
     ["reasoning", "reasoning_content"]),
    ({"role": "tool", "content": "hi", "tool_call_id": "c"}, ["tool.content", "tool.tool_call_id"]),
    ({"role": "tool", "content": PARTS, "tool_call_id": "c"}, ["tool.content.text"]),
    ({"role": "user", "content": PARTS * 2}, []),
    ({"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}]}, []),
    ({"role": "assistant", "content": None, "tool_calls": []}, []),
    ({"role": "assistant", "content": []}, []),
    ({"role": "assistant"}, []),
]  # fmt: skip


def of_message(message: dict[str, Any], names: list[str]) -> Any:
    fields = ["chat.messages", *(f"chat.messages.{name}" for name in names)]
    role = f"chat.messages.{message['role']}"
    return pytest.param(message, marks=honours(*dict.fromkeys([*fields, role])))


@pytest.mark.parametrize("message", [of_message(*row) for row in IN_MESSAGES])
async def test_template_receives_every_field_of_a_message(world, message):
    model = world.model()

    await world.chat(messages=[message])

    assert [message] == model.rendered[0][0]


def in_history(role: str, *names: str) -> Any:
    fields = [f"chat.messages.{role}", *(f"chat.messages.{role}.{name}" for name in names)]
    return honours(*fields)


@in_history("assistant", "function_call", "function_call.name", "function_call.arguments")
@in_history("function", "content", "name")
async def test_function_calls_in_the_history_become_tool_calls(world):
    """Templates know only tools: calls and their results."""
    model = world.model()
    call = {"role": "assistant", "content": None, "function_call": CALL["function"]}

    await world.chat(messages=[call, {"role": "function", "content": "hi", "name": "f"}])

    called, answered = model.rendered[0][0]
    assert called["tool_calls"] == [{**CALL, "id": "call00000"}]
    assert tuple(answered[name] for name in ("role", "tool_call_id", "content")) == (
        "tool",
        "call00000",
        "hi",
    )


@in_history(
    "assistant", "tool_calls.custom", "tool_calls.custom.id", "tool_calls.custom.name",
    "tool_calls.custom.input",
)  # fmt: skip
async def test_custom_tool_calls_in_the_history_become_function_calls(world):
    """The template showed the model a function in place of the custom tool."""
    model = world.model()
    call = {"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}

    await world.chat(messages=[{"role": "assistant", "tool_calls": [call]}])

    function = {"name": "f", "arguments": '{"input":"x"}'}
    assert [{**CALL, "function": function}] == model.rendered[0][0][0]["tool_calls"]


@honours("chat.documents")
async def test_template_receives_the_documents(world):
    model = world.model()

    await world.chat(documents=[{"title": "t", "text": "x"}])

    assert model.rendered[0][1]["documents"] == [{"title": "t", "text": "x"}]


@honours("completions.suffix")
async def test_suffix_becomes_a_fill_in_the_middle_prompt(world):
    """In the form of the model's family."""
    request = await reached(world, "completions", suffix="after")

    assert request.prompt == "hi_after"
