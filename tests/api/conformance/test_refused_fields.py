"""Fields that cannot be honoured are a 400 that names them, over HTTP, on every model."""

from typing import Any

import httpx
import pytest

from openai_frontend.serving.request.field_policy import (
    NEUTRAL_IN_CHAT,
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
}
BY_NAME = [
    pytest.param(path, field, marks=refuses(f"{prefix}.{field}"), id=f"{prefix}.{field}")
    for path, (prefix, fields) in TABLES.items()
    for field in fields
]


@pytest.mark.parametrize(("path", "field"), BY_NAME)
def test_refused_by_name(send: Send, path, field):
    """What these fields ask for does not exist here: 400, whatever the value asks for."""
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
def test_tools(send: Send, tool):
    """Tools of every kind are refused, not ignored, where the model's template shows it none."""
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
def test_tool_choices(send: Send, choice):
    """A choice among tools is refused where none is offered."""
    response = send(CHAT, tool_choice=choice)

    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")


@pytest.mark.refuses("chat.function_call.name")
def test_function_call(send: Send):
    """The older form of the same is refused too."""
    response = send(CHAT, function_call={"name": "f"})

    assert (response.status_code, response.json()["error"]["param"]) == (400, "function_call")


@pytest.mark.refuses("chat.modalities")
def test_modalities(send: Send):
    """Answers are text: sound is refused."""
    response = send(CHAT, modalities=["text", "audio"])

    assert (response.status_code, response.json()["error"]["param"]) == (400, "modalities")


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
FILE = {"type": "file", "file": {"file_data": "AA==", "filename": "a.pdf"}}
PARTS = [
    pytest.param(IMAGE, marks=refuses("chat.messages.user.content.image_url")),
    pytest.param(SOUND, marks=refuses("chat.messages.user.content.input_audio")),
    pytest.param(FILE, marks=refuses("chat.messages.user.content.file")),
]


@pytest.mark.parametrize("part", PARTS)
def test_content_parts(send: Send, part):
    """Only text can be read: other parts are refused at their place."""
    response = send(CHAT, messages=[{"role": "user", "content": [part]}])

    place = "messages[0].content[0].type"
    assert (400, place) == (response.status_code, response.json()["error"]["param"])


MESSAGE_FIELDS: list[Any] = [
    pytest.param(
        {"audio": {"id": "a"}}, "messages[0].audio", marks=refuses("chat.messages.assistant.audio")
    ),
]


@pytest.mark.parametrize(("fields", "place"), MESSAGE_FIELDS)
def test_fields_of_an_assistants_message(send: Send, fields, place):
    """What no template can show is refused at its place."""
    response = send(CHAT, messages=[{"role": "assistant", "content": "hi", **fields}])

    error = response.json()["error"]
    assert (response.status_code, error["param"].startswith(place)) == (400, True)


@pytest.mark.refuses("models.delete", "models.delete.model")
def test_models_cannot_be_deleted(mock_gateway):
    """The models are the repository's: DELETE is a 405 that says what is allowed."""
    response = httpx.delete(f"{mock_gateway.url}/v1/models/mock")

    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
