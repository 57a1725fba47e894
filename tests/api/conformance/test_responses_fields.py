"""Fields of /v1/responses: which reach the prompt, have no effect, become notes, or are refused."""

import base64
from typing import Any

import pytest

from openai_frontend.serving.request.field_policy import NEUTRAL_IN_RESPONSES
from openai_frontend.serving.request.sealed_text import UNENCRYPTED
from tests import images
from tests.api.conformance.traced import (
    SEEN,
    TRACE,
    UNSEEN,
    Ask,
    Body,
    leaves,
    rows,
)

PREFIX = "responses"
accepts, honours = pytest.mark.accepts, pytest.mark.honours
notes, refuses = pytest.mark.notes, pytest.mark.refuses


@pytest.fixture
def ask(traced_client) -> Ask:
    """Posts the body, to which a model and an input are added."""
    return lambda body: traced_client.post(
        "/v1/responses", json={"model": "traced", "input": "hi", **body}
    )


def text(response: Any) -> str:
    assert response.status_code == 200, response.text
    [message] = response.json()["output"]
    said: str = message["content"][0]["text"]
    return said


def item(**fields: Any) -> Body:
    return {"input": [{"role": "user", "content": "hi"}, fields]}


def part(**fields: Any) -> list[Body]:
    """The part in each place that takes one."""
    return [
        item(role="user", content=[fields]),
        item(type="function_call_output", call_id="c", output=[fields]),
        item(type="custom_tool_call_output", call_id="c", output=[fields]),
    ]


def tool(**fields: Any) -> list[Body]:
    """The tool in each place that takes one."""
    return [
        {"tools": [fields]},
        item(type="tool_search_output", call_id="c", tools=[fields]),
        item(type="additional_tools", role="developer", tools=[fields]),
    ]


def function(**fields: Any) -> list[Body]:
    """The function as a tool, and as one of a namespace."""
    plain = {"type": "function", "name": "f", "parameters": {"type": "object"}, **fields}
    return [*tool(**plain), *tool(type="namespace", name="n", description="d", tools=[plain])]


def custom(**fields: Any) -> list[Body]:
    plain = {"type": "custom", "name": "f", **fields}
    return [*tool(**plain), *tool(type="namespace", name="n", description="d", tools=[plain])]


SCHEMA = {"type": "object", "properties": {TRACE: {"type": "string"}}}
ARGUMENTS = f'{{"a": "{TRACE}"}}'
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
CUSTOM_OUTPUT = {**OUTPUT, "type": "custom_tool_call_output"}
SEARCH = {"type": "tool_search_call", "call_id": "c", "arguments": {}}
FOUND = {"type": "tool_search_output", "call_id": "c", "tools": [], "execution": "client"}
CLIENT_SEARCH = {"type": "tool_search", "execution": "client"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
THOUGHT = {"type": "reasoning", "summary": []}

HONOURED: list[Body] = [
    {"input": TRACE},
    {"instructions": TRACE},
    *part(type="input_text", text=TRACE),
    *part(type="input_file", filename=TRACE, file_data="data:text/plain;base64,eA=="),
    item(type="message", role="user", content=TRACE),
    item(type="message", role="assistant", content=[{"type": "output_text", "text": TRACE}]),
    item(type="message", role="assistant", content=[{"type": "refusal", "refusal": TRACE}]),
    *(item(**{**CALL, name: TRACE}) for name in ("call_id", "name", "namespace")),
    item(**{**CALL, "arguments": ARGUMENTS}),
    *(item(**{**CUSTOM, name: TRACE}) for name in ("call_id", "name", "namespace", "input")),
    *(item(**{**OUTPUT, name: TRACE}) for name in ("call_id", "output")),
    *(item(**{**CUSTOM_OUTPUT, name: TRACE}) for name in ("call_id", "output")),
    item(**{**SEARCH, "arguments": {"query": TRACE}}),
    item(**{**SEARCH, "call_id": TRACE}),
    item(**{**FOUND, "call_id": TRACE}),
    item(type="reasoning", summary=[{"type": "summary_text", "text": TRACE}]),
    item(type="reasoning", summary=[], content=[{"type": "reasoning_text", "text": TRACE}]),
    item(type="agent_message", author="a", content=TRACE),
    item(type="agent_message", author=TRACE, content="x"),
    *function(name=TRACE),
    *function(description=TRACE),
    *function(parameters=SCHEMA),
    *custom(name=TRACE),
    *custom(description=TRACE),
    *tool(type="namespace", name=TRACE, description="d", tools=[{"type": "custom", "name": "f"}]),
    {"tools": [{**CLIENT_SEARCH, "description": TRACE}]},
    {"tools": [{**CLIENT_SEARCH, "parameters": SCHEMA}]},
]


@pytest.mark.parametrize("body", rows(PREFIX, honours, HONOURED))
def test_text_of_the_field_is_in_the_prompt(ask, body):
    assert text(ask(body)) == SEEN


FILE = "data:text/plain;base64," + base64.b64encode(TRACE.encode()).decode()


@honours("responses.input.content.input_file.file_data")
@accepts("responses.input.content.input_file.detail")
@pytest.mark.parametrize("body", part(type="input_file", file_data=FILE, detail="low"))
def test_text_of_a_file_is_in_the_prompt(ask, body):
    assert text(ask(body)) == SEEN


@honours("responses.input.output.refusal")
def test_refusal_as_an_output_is_in_the_prompt(ask):
    assert text(ask(item(**{**OUTPUT, "output": [{"type": "refusal", "refusal": TRACE}]}))) == SEEN


@honours("responses.input.reasoning.encrypted_content")
def test_encrypted_reasoning_is_in_the_prompt(ask):
    assert text(ask(item(**THOUGHT, encrypted_content=UNENCRYPTED(TRACE)))) == SEEN


def picture(detail: str) -> dict[str, Any]:
    return {
        "type": "input_image",
        "image_url": images.data_url(images.red_circle()),
        "detail": detail,
    }


@honours(
    "responses.model",
    "responses.input.content.input_image",
    "responses.input.content.input_image.detail",
    "responses.input.content.input_image.image_url",
)
@accepts("responses.input.content.input_image.prompt_cache_breakpoint")
@pytest.mark.parametrize("body", part(**picture("high"), prompt_cache_breakpoint=TRACE))
def test_image_reaches_the_model(ask, body):
    assert " high " in text(ask({**body, "model": "images"}))


IGNORED: list[Body] = [
    *part(type="input_text", text="x", prompt_cache_breakpoint=TRACE),
    *part(
        type="input_file",
        file_data="data:text/plain;base64,eA==",
        prompt_cache_breakpoint=TRACE,
    ),
    item(role="user", content="x", phase=TRACE),
    item(role="user", content="x", status=TRACE),
    *(item(**{**SAID, name: TRACE}) for name in ("id", "status", "phase")),
    *(
        item(**{**SAID, "content": [{"type": "output_text", "text": "a", name: [TRACE]}]})
        for name in ("annotations", "logprobs")
    ),
    *(item(**CALL, **{name: TRACE}) for name in ("id", "status", "async")),
    *(item(**CUSTOM, **{name: TRACE}) for name in ("id", "async")),
    *(item(**each, caller=TRACE) for each in (CALL, CUSTOM, OUTPUT, CUSTOM_OUTPUT)),
    *(item(**OUTPUT, **{name: TRACE}) for name in ("id", "name", "namespace", "status")),
    item(**CUSTOM_OUTPUT, id=TRACE),
    *(item(**SEARCH, **{name: TRACE}) for name in ("id", "status", "execution")),
    *(item(**{**FOUND, name: TRACE}) for name in ("id", "status", "execution")),
    item(type="additional_tools", role="developer", tools=[], id=TRACE),
    *(item(**THOUGHT, **{name: TRACE}) for name in ("id", "status")),
    item(type="configuration_update", id=TRACE),
    *function(output_schema=SCHEMA),
    *tool(type="namespace", name="n", description=TRACE, tools=[]),
    *({name: TRACE} for name in (
        "user", "safety_identifier", "prompt_cache_key", "access_programs")),
    {"metadata": {"k": TRACE}},
    {"client_metadata": {"k": TRACE}},
    {"prompt_cache_options": {"ttl": TRACE}},
    {"prompt_cache_options": {"comparison_response_id": TRACE}},
    {"image": TRACE},
]  # fmt: skip


@pytest.mark.parametrize("body", leaves(PREFIX, accepts, IGNORED))
def test_field_is_accepted_without_effect(ask, body):
    assert text(ask(body)) == UNSEEN


WITHOUT_EFFECT: list[tuple[str, Body]] = [
    ("store", {"store": True}),
    ("service_tier", {"service_tier": "flex"}),
    ("max_tool_calls", {"max_tool_calls": 3}),
    ("prompt_cache_retention", {"prompt_cache_retention": "24h"}),
    ("prompt_cache_options", {"prompt_cache_options": {}}),
    ("prompt_cache_options.mode", {"prompt_cache_options": {"mode": "explicit"}}),
    ("background", {"background": False}),
    ("input.compaction", item(type="compaction", encrypted_content=TRACE)),
    ("input.program", item(type="program", code=TRACE)),
    ("input.program_output", item(type="program_output", result=TRACE)),
    *(
        (f"tools.{kind}.{name}", body)
        for kind, bodies in (("function", function), ("custom", custom))
        for name, value in {"allowed_callers": ["direct"], "async": True}.items()
        for body in bodies(**{name: value})
    ),
    *(
        (f"tools.{kind}", body)
        for kind in (
            "file_search", "computer", "computer_use_preview", "mcp", "code_interpreter",
            "programmatic_tool_calling", "image_generation", "local_shell", "shell", "apply_patch",
        )
        for body in tool(type=kind, label=TRACE)
    ),
    *(
        (f"tools.{name}", body)
        for name in ("filters", "search_context_size", "user_location", "external_web_access",
                     "search_content_types")
        for body in tool(type="web_search", **{name: TRACE})
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [pytest.param(body, marks=accepts(f"responses.{name}"), id=name)
     for name, body in WITHOUT_EFFECT],
)  # fmt: skip
def test_value_is_accepted_without_effect(ask, body):
    """Hosted tools are left out."""
    assert text(ask(body)) == UNSEEN


NOTED = (
    "file_search_call", "computer_call", "computer_call_output", "web_search_call",
    "image_generation_call", "code_interpreter_call", "local_shell_call", "local_shell_call_output",
    "shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output",
    "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call",
)  # fmt: skip


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=notes(f"responses.input.{each}")) for each in NOTED]
)
def test_prompt_has_a_note_of_the_item(ask, kind):
    assert text(ask(item(type=kind, server_label=TRACE))) == SEEN


REFUSED: list[tuple[str, Body, str]] = [
    ("input.compaction_trigger", item(type="compaction_trigger"), "input[1]"),
    ("input.item_reference", item(type="item_reference", id="i"), "input[1]"),
    *(
        (f"input.content.{kind}.{name}", body, place)
        for kind, name in (
            ("input_file", "file_id"), ("input_file", "file_url"), ("input_image", "file_id"),
        )
        for body, place in zip(
            part(type=kind, **{name: "x"}),
            (f"input[1].content[0].{name}", *[f"input[1].output[0].{name}"] * 2),
            strict=True,
        )
    ),
    ("background", {"background": True}, "background"),
    ("previous_response_id", {"previous_response_id": "r"}, "previous_response_id"),
    ("reasoning.mode", {"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ("prompt_cache_options.prewarm", {"prompt_cache_options": {"prewarm": True}},
     "prompt_cache_options.prewarm"),
    *((f"tool_choice.{kind}", {"tools": [{"type": kind}], "tool_choice": {"type": kind}},
       "tool_choice")
      for kind in ("mcp", "programmatic_tool_calling", "apply_patch", "shell")),
    *((name, {name: value}, name) for name, value in {
        "max_tokens": 5, "n": 2, "length_penalty": 2.0, "logprob_token_ids": [3],
        "prompt_logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True,
        "use_beam_search": True,
        "response_format": {"type": "json_object"},
    }.items()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param"),
    [pytest.param(body, param, marks=refuses(f"responses.{name}"), id=name)
     for name, body, param in REFUSED]
    + [pytest.param({name: {"something": ["else"]}}, name, marks=refuses(f"responses.{name}"),
                    id=name)
       for name in NEUTRAL_IN_RESPONSES],
)  # fmt: skip
def test_field_is_refused_by_name(ask, body, param):
    response = ask(body)

    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@honours("responses.truncate_prompt_tokens", "responses.truncation_side")
@pytest.mark.parametrize(("side", "answer"), [("left", SEEN), ("right", UNSEEN)])
def test_prompt_is_cut_to_the_requested_tokens(ask, side, answer):
    cut = {"truncate_prompt_tokens": 60, "truncation_side": side}
    response = ask({"input": "x" * 99 + TRACE, **cut})

    assert text(response) == answer
    assert response.json()["usage"]["input_tokens"] == 60


@honours("responses.add_special_tokens")
def test_special_tokens_are_counted(ask):
    bare, more = (
        ask({"add_special_tokens": each}).json()["usage"]["input_tokens"] for each in (False, True)
    )
    assert more == bare + 1


def event_names(response: Any) -> list[str]:
    return [line for line in response.text.splitlines() if line.startswith("event: ")]


@honours("responses.stream")
@accepts(
    *(f"responses.stream_options{name}" for name in (
        "", ".include_obfuscation", ".include_usage", ".continuous_usage_stats"))
)  # fmt: skip
def test_options_of_a_stream_have_no_effect(ask):
    options = {
        "include_obfuscation": True,
        "include_usage": False,
        "continuous_usage_stats": True,
    }
    with_options = ask({"stream": True, "stream_options": options})

    assert event_names(with_options) == event_names(ask({"stream": True}))
    assert event_names(with_options)[-1] == "event: response.completed"


@honours("responses.stream_interval")
def test_stream_interval_gathers_tokens(ask):
    each, gathered = (
        len(event_names(ask({"stream": True, "stream_interval": interval}))) for interval in (1, 9)
    )
    assert gathered < each


COUNTED: list[Any] = [
    pytest.param({"input": "hi " * 9}, marks=honours("input_tokens.input")),
    pytest.param({"instructions": "Be brief."}, marks=honours("input_tokens.instructions")),
    pytest.param(function()[0], marks=honours("input_tokens.tools")),
    pytest.param(
        {"reasoning": {"context": "current_turn"}, "input": [THOUGHT | {"content": [
            {"type": "reasoning_text", "text": "hm"}]}, SAID, {"role": "user", "content": "hi"}]},
        marks=honours("input_tokens.reasoning"),
    ),
    pytest.param({"model": "images"}, marks=honours("input_tokens.model")),
    *(
        pytest.param(body, marks=accepts(f"input_tokens.{next(iter(body))}"))
        for body in (
            {"tool_choice": "auto"}, {"parallel_tool_calls": False}, {"truncation": "auto"},
            {"text": {"format": {"type": "json_object"}}}, {"personality": "friendly"},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("body", COUNTED)
def test_count_is_that_of_the_answers_usage(ask, traced_client, body):
    """Exactly: a field that changes the prompt of an answer changes the count of its tokens."""
    counted = traced_client.post(
        "/v1/responses/input_tokens", json={"model": "traced", "input": "hi", **body}
    )

    assert counted.status_code == 200, counted.text
    assert counted.json()["input_tokens"] == ask(body).json()["usage"]["input_tokens"]


@pytest.mark.parametrize(
    "field",
    [pytest.param(each, marks=refuses(f"input_tokens.{each}"))
     for each in ("conversation", "previous_response_id")],
)  # fmt: skip
def test_state_is_refused_when_tokens_are_counted(traced_client, field):
    body = {"model": "traced", "input": "hi", field: "x"}

    response = traced_client.post("/v1/responses/input_tokens", json=body)

    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
