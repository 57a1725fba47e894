"""Numbers in JSON that a schema does not describe: none is rounded, and none becomes null.

tests/fast/schemas/test_json_values.py checks the schemas of all requests.
"""

import json
import re
from typing import Any

import pytest

from tests.security.guarded import MESSAGES, REQUIRED, check_refused, message_of

NUMBER = 123456789
INFINITE = b"1e999"
LONG = b"123456789012345678901234567890"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": NUMBER}}}
FUNCTION = {"name": "f", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
MODEL: dict[str, Any] = {"model": "mock"}
WITH_TOOLS = {"model": "tools", "messages": MESSAGES}
CHAT = {**MODEL, "messages": MESSAGES, "max_tokens": 7}
RESPONSE = {**MODEL, "input": "hi"}
USE = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": NUMBER}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]},
]
CALLS = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": NUMBER}}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "1"},
]
# Members that no schema describes, two of which are written into the prompt
UNKNOWN = [{"role": "user", "content": [{"type": "text", "text": "hi", "hint": {"a": NUMBER}}]}]
SERVER_USE = [
    *MESSAGES,
    {"role": "assistant", "content": [{"type": "server_tool_use", "input": {"a": NUMBER}}]},
    *MESSAGES,
]
SEARCH = [{"role": "user", "content": "hi"}, {"type": "web_search_call", "action": {"a": NUMBER}}]
DATA = [{"role": "user", "content": [{"type": "input_json", "data": {"a": NUMBER}}]}]
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
AS_TEXT = json.dumps(SCHEMA)

# (path, body with the number, field); the unknown field `hint` may be in any body
BODIES: list[tuple[str, dict[str, Any], str]] = [
    *((path, {**fields, "hint": {"a": NUMBER}}, "hint.a") for path, fields in REQUIRED.items()),
    ("/v1/chat/completions", {**CHAT, "response_format": FORM}, "response_format"),
    ("/v1/chat/completions", {**CHAT, "guided_json": SCHEMA}, "guided_json"),
    ("/v1/chat/completions", {**CHAT, "guided_json": AS_TEXT}, "guided_json"),
    (
        "/v1/chat/completions",
        {**CHAT, "structured_outputs": {"json": SCHEMA}},
        "structured_outputs",
    ),
    (
        "/v1/chat/completions/render",
        {**WITH_TOOLS, "tools": [TOOL]},
        "tools[0].function.parameters",
    ),
    (
        "/v1/chat/completions/render",
        {**WITH_TOOLS, "functions": [FUNCTION]},
        "functions[0].parameters",
    ),
    ("/v1/chat/completions", {**CHAT, "messages": CALLS}, "messages[1].tool_calls[0]"),
    ("/v1/chat/completions", {**CHAT, "messages": UNKNOWN}, "messages[0].content[0].hint.a"),
    ("/v1/completions", {**MODEL, "prompt": "hi", "guided_json": SCHEMA}, "guided_json"),
    ("/tokenize", {**WITH_TOOLS, "tools": [TOOL]}, "tools[0].function.parameters"),
    ("/v1/messages", {**CHAT, "messages": USE}, "messages[1].content[0].input.a"),
    ("/v1/messages", {**CHAT, "messages": SERVER_USE}, "messages[1].content[0].input.a"),
    (
        "/v1/messages/count_tokens",
        {**WITH_TOOLS, "tools": [{"name": "f", "input_schema": SCHEMA}]},
        "tools[0].input_schema",
    ),
    (
        "/v1/responses/input_tokens",
        {"model": "tools", "input": "hi", "tools": [{"type": "function", **FUNCTION}]},
        "tools[0].parameters",
    ),
    (
        "/v1/responses",
        {**RESPONSE, "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
        "text.format.schema",
    ),
    ("/v1/responses", {**MODEL, "input": SEARCH}, "input[1].action.a"),
    ("/v1/decisions", {**REQUIRED["/v1/decisions"], "input": DATA}, "input[0].content[0].data.a"),
    ("/v2/models/mock/generate", {"text_input": "hi", "parameters": {"a": NUMBER}}, "parameters.a"),
    ("/invocations", {**CHAT, "tools": [TOOL]}, "tools[0].function"),
]
IDS = [f"{path} {field}" for path, _, field in BODIES]


def bodies(fields: dict[str, Any], number: bytes) -> dict[str, bytes]:
    """A short body, and one that is too long for pydantic's parser alone."""
    short = json.dumps(fields).encode()
    short = short.replace(str(NUMBER).encode(), number)
    return {"short": short, "long": short[:-1] + b" " * 20_000 + b"}"}


@pytest.mark.parametrize(("path", "fields", "field"), BODIES, ids=IDS)
def test_number_that_is_no_finite_double_gets_400_with_its_field(guarded, path, fields, field):
    for body in bodies(fields, INFINITE).values():
        response = guarded.post(path, body)

        check_refused(response, 400)
        assert field in message_of(response)


@pytest.mark.parametrize(("path", "fields", "field"), BODIES, ids=IDS)
def test_long_integer_has_the_same_answer_in_bodies_of_all_sizes(guarded, path, fields, field):
    """The integer is kept, or refused with its field."""
    short, long = (guarded.post(path, body) for body in bodies(fields, LONG).values())

    assert short.status == long.status
    assert short.status in (200, 400), short.body
    if short.status == 400:
        assert message_of(short) == message_of(long)
        assert any(step in message_of(short) for step in re.findall("[a-z_]+", field))
