import json
from typing import Any

import pytest
from pydantic import ValidationError

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.request_body import BodyReader
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from schemas.embeddings import EmbeddingRequest

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def called(arguments: Any) -> dict[str, Any]:
    return {**CALL, "function": {"name": "f", "arguments": arguments}}


# What the clients send, according to their source code.
CLIENTS: dict[str, dict[str, Any]] = {
    "aiperf": {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_completion_tokens": 5,
        "ignore_eos": True,
        "min_tokens": 5,
        "nvext": {"a": 1},
    },
    "aiperf's parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "uuid": "u"}]}]
    },
    "langchain": {"messages": [{"role": "developer", "content": "a"}, USER], "n": 1, "stop": None},
    "open-webui": {"chat_id": "x", "stream_response": True, "stream": False},
    "continue": {"max_tokens": 100, "stop": ["\n"] * 16, "temperature": 0},
    "a call that was cut off": {
        "messages": [{"role": "assistant", "tool_calls": [called(given)]}
                     for given in ('{"locat', "[]", {"x": 1}, None)]
    },
    "an agent's turn": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": [{"type": "text", "text": "1"}], "tool_call_id": "c"},
        ]
    },
}  # fmt: skip


@pytest.mark.parametrize("fields", CLIENTS.values(), ids=CLIENTS)
def test_requests_of_known_clients_are_accepted(fields):
    """Their messages stay plain dicts."""
    body = {"model": "m", "messages": [USER], **fields}

    request = ChatCompletionRequest.model_validate(body)

    assert body["messages"] == request.messages


def test_unknown_fields_are_kept():
    """The field policy, not the schema, decides whether they are an error."""

    request = ChatCompletionRequest.model_validate({"model": "m", "messages": [USER], "x": [1]})

    assert request.model_extra == {"x": [1]}


LIMITS = [
    ("n", 1, 128),
    ("seed", -(2**63), 2**63 - 1),
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("max_tokens", -1, 2**31 - 1),
    ("max_completion_tokens", -1, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("top_k", -1, 2**31 - 1),
]


@pytest.mark.parametrize(("name", "least", "most"), LIMITS)
def test_every_number_has_a_minimum_and_a_maximum(name, least, most):
    """One step beyond either is refused."""

    def read(value: float) -> Any:
        body = {"model": "m", "messages": [USER], name: value}
        return getattr(ChatCompletionRequest.model_validate(body), name)

    assert (least, most) == (read(least), read(most))
    for beyond in (least - 1, most + 1):
        with pytest.raises(ValidationError):
            read(beyond)


VALUES: dict[str, Any] = {
    "a string": "3",
    "a boolean": True,
    "a decimal": 1.5,
    "an array": [1],
    "an object": {},
}
KINDS = {"integer": "an integer", "number": "a decimal", "boolean": "a boolean"}


@pytest.mark.parametrize("schema", [ChatCompletionRequest, CompletionRequest, EmbeddingRequest])
def test_types_are_strict(schema):
    """No value is converted: "3" is not a number, true is not 1."""
    expected, errors = {}, {}
    for name, field in schema.model_json_schema()["properties"].items():
        forms = [form for form in field.get("anyOf", ()) if form.get("type") != "null"]
        if len(forms) != 1 or (kind := KINDS.get(forms[0].get("type"))) is None:
            continue
        for got, value in VALUES.items():
            if got != kind:
                body = {"messages": [USER], "prompt": "a", "input": "a", name: value}
                expected[name, got] = f"expected {kind}, but got {got} instead."
                with pytest.raises(InvalidRequest) as refused:
                    BodyReader(schema).parse(json.dumps(body).encode())
                assert (refused.value.param, refused.value.code) == (name, "invalid_type")
                errors[name, got] = refused.value.message.partition(": ")[2]

    assert len(expected) > 8
    assert errors == expected


def test_every_number_and_list_is_bounded():
    schema = ChatCompletionRequest.model_json_schema()

    unbounded = [
        name
        for name, field in schema["properties"].items()
        for form in field.get("anyOf", [field])
        if (form.get("type") in ("integer", "number") and "maximum" not in form)
        or (form.get("type") == "array" and "maxItems" not in form)
    ]

    assert unbounded == []
