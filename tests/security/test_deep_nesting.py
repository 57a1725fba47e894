"""The gateway refuses deeply nested input before a parser recurses into it: no recursion error, no
stack overflow (orjson's CVE-2025-67221, Triton's limit of 100). tests/medium/test_json_limits.py
tests the exact limits.
"""

import json
from typing import Any

import pytest

from tests.security.guarded import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, check_refused

DEEP = 100_000


def arrays(depth: int = DEEP) -> bytes:
    return b"[" * depth + b"]" * depth


def objects(depth: int = DEEP) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


PLACES = {
    "messages": b'{"model":"mock","messages":%s}',
    "content": b'{"model":"mock","messages":[{"role":"user","content":%s}]}',
    "unknown field": b'{"model":"mock","messages":[],"x":%s}',
    "template variables": b'{"model":"mock","messages":[],"chat_template_kwargs":{"x":%s}}',
    "schema": b'{"model":"mock","messages":[],"response_format":{"type":"json_schema",'
    b'"json_schema":{"name":"x","schema":%s}}}',
    "tool": b'{"model":"mock","messages":[],"tools":[{"type":"function","function":{"name":"f",'
    b'"parameters":%s}}]}',
    "whole": b"%s",
}


@pytest.mark.parametrize("nested", [arrays(), objects(), b"[" * 400_000], ids=["[", "{", "open"])
@pytest.mark.parametrize("place", PLACES)
def test_deep_nesting_anywhere_in_a_body_gets_400(guarded, place, nested):
    check_refused(guarded.post(CHAT, PLACES[place] % nested))


@pytest.mark.parametrize(
    "path",
    [COMPLETIONS, EMBEDDINGS, "/v1/rerank", "/v1/score", "/tokenize", "/detokenize",
     "/v1/decisions", "/v2/models/mock/generate", "/v2/models/mock/infer", "/v2/repository/index",
     "/v1/models/mock/load", "/v1/load_lora_adapter"],
)  # fmt: skip
def test_deep_nesting_is_refused_on_every_endpoint(guarded, path):
    check_refused(guarded.post(path, objects()), 400, 404)
    check_refused(guarded.post(path, arrays()), 400, 404)


def schema(depth: int) -> dict[str, Any]:
    """A schema of this depth, which the limit for JSON alone allows."""
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        nested = {"not": nested}
    return nested


AS_TEXT: dict[str, dict[str, Any]] = {
    "arguments of an earlier call": {
        "messages": [
            *MESSAGES,
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "f", "arguments": arrays().decode()},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ]
    },
    "structured_outputs": {"structured_outputs": {"json": objects().decode()}},
    "guided_json": {"guided_json": arrays().decode()},
    "guided_regex": {"guided_regex": "(" * 50_000 + ")" * 50_000},
    "guided_grammar": {"guided_grammar": "root ::= " + "(" * 50_000 + ")" * 50_000},
    "schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema(58)},
        }
    },
}


@pytest.mark.parametrize("name", AS_TEXT)
def test_deep_nesting_in_json_text_is_refused_if_it_is_parsed(guarded, name):
    """The same limits apply to JSON inside a string. A string that the gateway does not parse stays
    text.
    """
    response = guarded.post(CHAT, AS_TEXT[name])

    if response.status == 200:  # not parsed: the mock model ignores grammars
        assert name in ("arguments of an earlier call", "guided_regex", "guided_grammar")
        assert json.loads(response.body)["choices"][0]["finish_reason"] == "stop"
    else:
        check_refused(response, 400)
