"""Detection of schemas that no value matches together."""

from typing import Any

import pytest

from openai_frontend.engines.vllm.grammars.schema_overlap import are_disjoint

pytestmark = pytest.mark.slow  # xgrammar's import

TAGGED: list[Any] = [
    {"type": "object", "properties": {"t": {"const": tag}}, "required": ["t"]} for tag in "ab"
]
APART: list[list[Any]] = [
    [{"type": "integer"}, {"type": "string"}, {"type": "null"}],
    [{"const": 1}, {"const": True}, {"enum": ["a", None]}],
    [{"type": "number", "maximum": 1}, {"type": "integer", "minimum": 2}],
    [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 4}],
    TAGGED,
    [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    [TAGGED[0], {"type": "object", "properties": {}, "additionalProperties": False}],
    [{"anyOf": [{"type": "null"}, {"type": "boolean"}]}, {"type": "integer"}],
    [{"allOf": [{"type": "null"}, {}]}, {"type": "integer"}],
    [False, {}],
    [{"const": number} for number in range(1500)],
    [
        {"type": "object", "properties": {"t": {"const": tag}}, "required": ["t"]}
        for tag in range(1500)
    ],
]
TOGETHER: list[list[Any]] = [
    [{"type": "integer"}, {"type": "number"}],
    [{"const": 1}, {"const": 1.0}],
    [{"const": [1]}, {"const": [2]}],
    [{"minimum": 2}, {"maximum": 1}],
    [{"type": "object"}, TAGGED[0]],
    [{**TAGGED[0], "required": []}, TAGGED[1]],
    [{"type": "null"}, {"anyOf": [{"type": "null"}, {"type": "boolean"}]}],
    [{"$ref": "#/$defs/loop"}, {"type": "null"}],
    [True, {"type": "null"}],
]
ROOT = {"$defs": {"a": TAGGED[0], "b": TAGGED[1], "loop": {"$ref": "#/$defs/loop"}}}


@pytest.mark.parametrize("schemas", APART, ids=str)
def test_mutually_exclusive_schemas(schemas):
    """They differ in types, values, bounds or properties."""
    assert are_disjoint(schemas, ROOT)


@pytest.mark.parametrize("schemas", TOGETHER, ids=str)
def test_schemas_that_may_overlap(schemas):
    """Schemas that cannot be compared count as overlapping."""
    assert not are_disjoint(schemas, ROOT)
