"""Fields that the gateway does not support get a 400 that names them, on every model."""

from typing import Any

import httpx
import pytest

from openai_frontend.serving.request.field_policy import (
    NEUTRAL_IN_CHAT,
    NEUTRAL_IN_CLASSIFICATION,
    NEUTRAL_IN_COMPLETIONS,
    NEUTRAL_IN_EMBEDDINGS,
)
from tests.api.conformance.conftest import Send

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
refuses = pytest.mark.refuses
TABLES = {
    CHAT: ("chat", NEUTRAL_IN_CHAT),
    COMPLETIONS: ("completions", NEUTRAL_IN_COMPLETIONS),
    "/v1/embeddings": ("embeddings", NEUTRAL_IN_EMBEDDINGS),
    "/v1/classify": ("classify", NEUTRAL_IN_CLASSIFICATION),
    "/v1/moderations": ("moderations", NEUTRAL_IN_CLASSIFICATION),
}
BY_NAME = [
    pytest.param(path, field, marks=refuses(f"{prefix}.{field}"), id=f"{prefix}.{field}")
    for path, (prefix, fields) in TABLES.items()
    for field in fields
]


@pytest.mark.parametrize(("path", "field"), BY_NAME)
def test_unsupported_field_is_refused_by_name(send: Send, path, field):
    """The gateway has no such feature, so any value gets a 400."""
    response = send(path, **{field: {"something": ["else"]}})

    error = response.json()["error"]
    assert (400, field, "unsupported_parameter") == (
        response.status_code,
        error["param"],
        error["code"],
    )


FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}}
TOOL_KINDS = [
    pytest.param({"type": "function", "function": FUNCTION}, marks=refuses("chat.tools.function")),
    pytest.param(
        {"type": "custom", "custom": {"name": "f", "format": GRAMMAR}},
        marks=refuses("chat.tools.custom"),
    ),
]


@pytest.mark.parametrize("tool", TOOL_KINDS)
def test_tools_are_refused_without_tools_in_the_template(send: Send, tool):
    """Tools of every kind are refused, not ignored, if the chat template does not render them."""
    response = send(CHAT, tools=[tool])

    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


CHOICES = [
    pytest.param("required", marks=refuses("chat.tool_choice.required")),
    pytest.param(
        {"type": "function", "function": {"name": "f"}}, marks=refuses("chat.tool_choice.function")
    ),
    pytest.param(
        {"type": "custom", "custom": {"name": "f"}}, marks=refuses("chat.tool_choice.custom")
    ),
    pytest.param(
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
        },
        marks=refuses("chat.tool_choice.allowed_tools"),
    ),
]


@pytest.mark.parametrize("choice", CHOICES)
def test_tool_choice_without_tools_is_refused(send: Send, choice):
    """A choice that requires a tool is refused if the request offers none."""
    response = send(CHAT, tool_choice=choice)

    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")


@pytest.mark.refuses("chat.function_call.name")
def test_function_call_without_functions_is_refused(send: Send):
    """The deprecated form of `tool_choice` is refused too."""
    response = send(CHAT, function_call={"name": "f"})

    assert (response.status_code, response.json()["error"]["param"]) == (400, "function_call")


@pytest.mark.refuses("chat.modalities")
def test_audio_modality_is_refused(send: Send):
    """Answers are text; audio is refused."""
    response = send(CHAT, modalities=["text", "audio"])

    assert (response.status_code, response.json()["error"]["param"]) == (400, "modalities")


FILE = {"type": "file", "file": {"file_data": "AA==", "filename": "a.pdf"}}


@refuses("chat.messages.user.content.file")
def test_files_are_refused(send: Send):
    """The error names the position of the part."""
    response = send(CHAT, messages=[{"role": "user", "content": [FILE]}])

    place = "messages[0].content[0].type"
    assert (400, place) == (response.status_code, response.json()["error"]["param"])


MESSAGE_FIELDS: list[Any] = [
    pytest.param(
        {"audio": {"id": "a"}}, "messages[0].audio", marks=refuses("chat.messages.assistant.audio")
    ),
]


@pytest.mark.parametrize(("fields", "place"), MESSAGE_FIELDS)
def test_assistant_fields_that_no_template_renders_are_refused(send: Send, fields, place):
    """The error names the position of the field."""
    response = send(CHAT, messages=[{"role": "assistant", "content": "hi", **fields}])

    error = response.json()["error"]
    assert (response.status_code, error["param"].startswith(place)) == (400, True)


@pytest.mark.refuses("models.delete", "models.delete.model")
def test_deleting_a_model_is_refused(mock_gateway):
    """DELETE gets a 405 with the allowed methods; the repository decides which models exist."""
    response = httpx.delete(f"{mock_gateway.url}/v1/models/mock")

    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
