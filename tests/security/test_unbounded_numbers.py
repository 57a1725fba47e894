"""No number, list or text of a request is without a bound (CVE-2026-34756, CVE-2024-8939).

tests/contract/test_limits.py tries every limit that OpenAI's API has, one below and one beyond it,
and what a refusal costs; here are the fields that nobody thinks of, and the edges of machines.
"""

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from schemas.embeddings import EmbeddingRequest
from tests.security.guarded import CHAT, COMPLETIONS, EMBEDDINGS, REQUIRED, check_refused

PATHS: dict[str, type[BaseModel]] = {
    CHAT: ChatCompletionRequest,
    COMPLETIONS: CompletionRequest,
    EMBEDDINGS: EmbeddingRequest,
}
NUMBERS = ["2147483648", "9223372036854775808", "1e308", "1e999", '"3"', "true", "-2147483649"]


def kinds(schema: Any, defs: Any) -> set[str]:
    """The types of JSON that a field may have."""
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


def test_there_are_fields():
    """The schemas' numbers are found."""
    assert {(CHAT, "n"), (CHAT, "temperature"), (COMPLETIONS, "best_of"), (EMBEDDINGS, "dimensions")} <= set(FIELDS)  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("path", PATHS)
def test_edges_of_machines(guarded, path):
    """A number of any size, in any field that takes numbers, is served or is a 400 in our words."""
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
def test_long_values(guarded, path, fields):
    """What is long beyond all use is refused, and costs no memory that stays."""
    check_refused(guarded.post(path, fields), 400, 413)
