"""Every number, list and text of a request has a limit (CVE-2026-34756, CVE-2024-8939).

tests/api/test_limits.py tests limits of OpenAI's API, one below and one above each, and the cost
of a refusal; these tests cover less common fields and the limits of machine integers.
"""

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from schemas.embeddings import EmbeddingRequest
from tests.security.guarded import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    REQUIRED,
    check_refused,
    message_of,
)

PATHS: dict[str, type[BaseModel]] = {
    CHAT: ChatCompletionRequest,
    COMPLETIONS: CompletionRequest,
    EMBEDDINGS: EmbeddingRequest,
}
NUMBERS = ["2147483648", "9223372036854775808", "1e308", "1e999", '"3"', "true", "-2147483649"]


def kinds(schema: Any, defs: Any) -> set[str]:
    """Return the JSON types that a field may have."""
    if "$ref" in schema:
        return kinds(defs[schema["$ref"].rpartition("/")[2]], defs)
    parts = schema.get("anyOf") or schema.get("oneOf")
    return set().union(*(kinds(part, defs) for part in parts)) if parts else {schema.get("type")}


def number_fields() -> list[tuple[str, str]]:
    found = []
    for path, schema in PATHS.items():
        document = TypeAdapter(schema).json_schema()
        for name, field in document["properties"].items():
            if kinds(field, document.get("$defs", {})) & {"integer", "number"}:
                found.append((path, name))
    return found


FIELDS = number_fields()


def test_the_number_fields_of_the_schemas_are_found():
    assert {(CHAT, "n"), (CHAT, "temperature"), (COMPLETIONS, "best_of"), (EMBEDDINGS, "dimensions")} <= set(FIELDS)  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("path", PATHS)
def test_numbers_of_any_size_are_served_or_get_400(guarded, path):
    """In every field that takes numbers; an error has our own message."""
    for name in (field for place, field in FIELDS if place == path):
        for number in NUMBERS:
            body = json.dumps({"field": 0, **_required(path)}).replace(
                '"field": 0', f'"{name}": {number}'
            )

            response = guarded.post(path, body.encode())

            if response.status != 200:
                check_refused(response, 400, echoed=number.strip('"'))


def _required(path: str) -> dict[str, Any]:
    return {**REQUIRED[path], "logprobs": True} if path == CHAT else REQUIRED[path]


LONG: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"stop": ["x"] * 10_000}),
    (CHAT, {"stop": "x" * 500_000}),
    (CHAT, {"logit_bias": {str(i): 1 for i in range(20_000)}}),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}] * 5_000}),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f" * 500_000}}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}] * 15_000}),
    (CHAT, {"bad_words": ["x"] * 50_000}),
    (CHAT, {"stop_token_ids": list(range(100_000))}),
    (CHAT, {"metadata": {str(i): "x" for i in range(10_000)}}),
    (CHAT, {"user": "x" * 900_000, "safety_identifier": "x" * 900}),
    (COMPLETIONS, {"prompt": ["x"] * 30_000}),
    (COMPLETIONS, {"prompt": [1] * 300_000}),
    (COMPLETIONS, {"n": 128, "best_of": 128, "prompt": ["x"] * 2048}),
    (EMBEDDINGS, {"input": ["x"] * 30_000}),
    (EMBEDDINGS, {"input": [[1]] * 30_000}),
    (EMBEDDINGS, {"dimensions": 2**31}),
    ("/v1/rerank", {"documents": ["x"] * 30_000}),
    ("/v1/score", {"text_2": ["x"] * 30_000}),
    ("/tokenize", {"prompt": "x" * 1_100_000}),
    ("/detokenize", {"tokens": [2**31] * 100}),
]


@pytest.mark.parametrize(("path", "fields"), LONG, ids=range(len(LONG)))
def test_very_long_values_are_refused(guarded, path, fields):
    """They also leave no memory in use."""
    check_refused(guarded.post(path, fields), 400, 413)


GENERATE = "/v2/models/mock/generate"
SAMPLING: dict[str, Any] = {
    "stop": ["x"] * 17,
    "stop_token_ids": [1] * 1025,
    "bad_words": ["x" * 1024] * 5,
    "allowed_token_ids": list(range(1025)),
    "logit_bias": {str(number): 1 for number in range(1025)},
    "extra_args": {str(number): 1 for number in range(100)},
    "logprobs": 21,
    "n": 10**9,
    "max_tokens": 2**31,
    "structured_outputs": {"regex": "x" * 65_537},
}


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling_parameters_of_kserve_have_the_same_limits(guarded, name):
    """The JSON text in a KServe tensor has the limits of the HTTP API's fields."""
    text = json.dumps({name: SAMPLING[name]})
    refused = guarded.post(GENERATE, {"sampling_parameters": text, "text_input": "hi"})

    check_refused(refused, 400)
    assert f"sampling_parameters: {name}" in message_of(refused)


LARGE_TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "many values": ({"sampling_parameters": "[" * 65}, "sampling_parameters"),
    "many bytes": ({"sampling_parameters": json.dumps({"stop": "x" * 530_000})}, "524288"),
    "a long salt": ({"cache_salt": "x" * 545}, "cache_salt"),
    "a long interval": ({"stream_interval": 1025}, "stream_interval"),
    "a negative interval": ({"stream_interval": -1}, "stream_interval"),
    "many tokens": ({"prompt_token_ids": [1] * 5000}, "prompt_token_ids"),
    "tokens to embed": (
        {"embedding_request": json.dumps({"input": [1] * 5000})},
        "embedding_request: input",
    ),
    "dimensions to embed": (
        {
            "embedding_request": json.dumps(
                {"input": "hi", "pooling_params": {"dimensions": 1_000_000}}
            )
        },
        "embedding_request: dimensions",
    ),
    "tokens to score": (
        {"score_request": json.dumps({"input": [1] * 5000})},
        "score_request: input",
    ),
    "bytes to embed": ({"embedding_request": json.dumps({"input": "x" * 200_000})}, "bytes"),
}


@pytest.mark.parametrize("name", LARGE_TENSORS)
def test_tensors_of_kserve_over_their_limit_get_400(guarded, name):
    """The error names the tensor."""
    inputs, expected = LARGE_TENSORS[name]
    refused = guarded.post(GENERATE, inputs)

    check_refused(refused, 400)
    assert expected in message_of(refused)
