"""Schemas, patterns and grammars that must not reach a compiler (CVE-2025-48942 to -48944,
CVE-2025-29770, CVE-2025-32381, CVE-2025-57809).

tests/vllm/test_grammars.py and test_constraints.py test how vLLM's compilers handle those that
pass: in a separate process, with a time limit, and without effect on the next request.
"""

import json
from typing import Any

import httpx
import pytest

from tests.security.guarded import CHAT, INTERNALS, check_refused


def form(schema: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    }


def chained(count: int) -> dict[str, Any]:
    """Definitions that each refer to the next one, and the last to the first."""
    definitions = {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % count}"} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


REFUSED: dict[str, dict[str, Any]] = {
    "large enum": form({"enum": ["x" * 100] * 5_000}),
    "many properties": form(
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10_000)}}
    ),
    "a circle": form(chained(3)),
    "a long circle": form(chained(2_000)),
    "itself": form({"$ref": "#"}),
    "elsewhere": form({"$ref": "http://127.0.0.1:1/x"}),
    "a file": form({"$ref": "file:///etc/passwd"}),
    "nowhere": form({"$ref": "#/$defs/" + "x" * 10_000}),
    "a wrong type": form({"type": "evil"}),
    "no schema": form([1, 2]),
    "text": {"structured_outputs": {"json": "{"}},
    "two at once": {"structured_outputs": {"json": "{}", "regex": "a"}},
    "long regex": {"structured_outputs": {"regex": "a" * 300_000}},
    "long grammar": {"guided_grammar": 'root ::= "a"\n' * 30_000},
    "huge numbers": form({"type": "integer", "minimum": -(10**300), "maximum": 10**300}),
    "huge numbers elsewhere": {"guided_json": {"minimum": 10**300}},
    "many choices": {"guided_choice": ["x" * 100] * 5_000},
}


@pytest.mark.parametrize("name", REFUSED)
def test_oversized_or_unresolvable_schemas_get_400(guarded, name):
    """The error names the field."""
    response = guarded.post(CHAT, REFUSED[name])

    check_refused(response, 400)
    assert json.loads(response.body)["error"]["param"].startswith(tuple(REFUSED[name]))


BOMBS: dict[str, dict[str, Any]] = {
    "catastrophic": {"structured_outputs": {"regex": "(a+)+$"}},
    "counted": {"structured_outputs": {"regex": "((a{1,1000}){1,1000}){1,1000}"}},
    "unclosed": {"structured_outputs": {"regex": "(" * 200}},
    "backreference": {"structured_outputs": {"regex": r"(a)\1(?<=b)"}},
    "NUL": {"structured_outputs": {"regex": "\0"}},
    "broken grammar": {"guided_grammar": "root ::= (((" + '"' * 99},
    "endless grammar": {"guided_grammar": "root ::= root"},
    "no root": {"guided_grammar": 'a ::= "x"'},
    "pattern": form({"type": "string", "pattern": "(a+)+$" * 50}),
    "lengths": form({"type": "string", "minLength": 2**31, "maxLength": 2**53}),
    "items": form({"type": "array", "items": {"type": "null"}, "minItems": 2**31}),
    "large numbers": form({"type": "integer", "minimum": -(2**63), "maximum": 2**63}),
    "recursive": form({"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}),
    "tag": {"response_format": {"type": "structural_tag", "format": {"type": "evil"}}},
}
MESSAGES = [{"role": "user", "content": "Say a."}]


@pytest.mark.engine
def test_the_engine_still_answers_after_each_grammar_bomb(gateway):
    """Each bomb gets a 200 or a 400, and the next request with a valid grammar is answered."""

    def ask(fields: dict[str, Any]) -> httpx.Response:
        body = {"model": "demo", "messages": MESSAGES, "max_tokens": 2, **fields}
        return httpx.post(f"{gateway.url}{CHAT}", json=body, timeout=60)

    for name, fields in BOMBS.items():
        answer = ask(fields)
        assert answer.status_code in (200, 400), (name, answer.text)
        if answer.status_code == 400:
            assert INTERNALS.search(answer.json()["error"]["message"]) is None, (name, answer.text)
        valid = ask({"structured_outputs": {"choice": ["a", "b"]}})
        assert valid.json()["choices"][0]["message"]["content"] in ("a", "b"), name
