"""What is left of schemas that need not be enforced completely."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.constraints.json_schema import check_schema
from openai_frontend.serving.constraints.schema_reduction import (
    ANY_OBJECT,
    REDUCTIONS,
    reduced_arguments,
    relaxed,
    structure,
)
from tests.examples import scaled


def test_relaxed_drops_keywords_that_no_grammar_enforces():
    """Names of properties are not keywords."""
    schema = {
        "type": "object",
        "properties": {"not": {"type": "array", "uniqueItems": True}, "if": {"not": {}}},
        "dependentRequired": {"a": ["b"]},
        "anyOf": [{"contains": {}, "minItems": 1}],
        "enum": [{"not": 1}],
    }

    assert relaxed(schema) == {
        "type": "object",
        "properties": {"not": {"type": "array"}, "if": {}},
        "anyOf": [{"minItems": 1}],
        "enum": [{"not": 1}],
    }


STRUCTURES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "string", "pattern": "(?=a)", "maxLength": 3}, {"type": "string", "maxLength": 3}),
    ({"type": "string", "format": "email", "pattern": "@"}, {"type": "string"}),
    ({"type": "string", "enum": ["a", 1], "minLength": 1}, {"enum": ["a"]}),
    ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, {"type": "number", "minimum": 0}),
    ({"type": "integer", "minimum": 6, "maximum": 5}, {"type": "integer"}),
    ({"type": "file"}, {}),
    ({"oneOf": [{"type": "string"}, {"minimum": 1}]},
     {"anyOf": [{"type": "string"}, {"type": "number", "minimum": 1}]}),
    ({"type": "array", "items": [{"type": "null"}]}, {"type": "array", "items": {}}),
    ({"allOf": [{"type": "object", "properties": {"a": {}}}, {"required": ["a"]}]},
     {"type": "object", "properties": {"a": {}}, "required": ["a"]}),
    ({"type": "object", "properties": {"a": {"required": 1}, "b": False}, "required": ["b", "c"]},
     {"type": "object", "properties": {"a": {"type": "object"}, "c": {}}, "required": ["c"]}),
    ({"$ref": "https://example.com"}, {}),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, {"$defs": {"a": {}}}),
    ({"$ref": "#/$defs/a", "title": "t", "$defs": {"a": {"type": "null"}}},
     {"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "expected"), STRUCTURES, ids=str)
def test_structure_keeps_types_and_bounds(schema, expected):
    """Neither rules for texts nor what is invalid."""
    assert structure(schema) == expected


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda values: (
        st.lists(values, max_size=3)
        | st.dictionaries(
            st.sampled_from((
                "type", "properties", "required", "items", "enum", "const", "anyOf", "allOf",
                "oneOf", "$ref", "$defs", "minimum", "maximum", "minLength",
                "additionalProperties", "a",
            )),
            values | st.sampled_from(("object", "string", "array", "#", "#/$defs/a", ["a"])),
        )
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(("type", "properties", "$ref", "$defs", "allOf")), _JSON))
@settings(deadline=None, max_examples=scaled(40))
def test_arguments_of_any_json_reduce_to_a_valid_schema(schema):
    """A function that is not strict is never refused for its schema, after no step of reduction."""
    for step in range(1, len(REDUCTIONS)):
        reduced, parts = reduced_arguments(schema, step)

        assert check_schema(reduced, "") == parts
        json.dumps(reduced)


@pytest.mark.parametrize("kind", ["array", "string", ["string", "null"], 3])
def test_arguments_are_an_object(kind):
    assert reduced_arguments({"type": kind, "properties": {"a": {}}}, 1)[0] == {"type": "object"}
    assert reduced_arguments({"type": ["object", "null"]}, 1)[0] == {"type": "object"}


def _doubled() -> dict[str, Any]:
    again = {"allOf": [{"$ref": "#/$defs/a"}]}
    return {"properties": {"x": again, "y": again}}


_CHAIN = {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(8000)}
LARGE = {
    "repeats itself": {"$defs": {"a": _doubled()}, **_doubled()},
    "refers along a chain": {"$defs": _CHAIN},
    "many large parts": {
        "$defs": {"a": {"required": ["x"] * 5000}}, "allOf": [{"$ref": "#/$defs/a"}] * 5000
    },
}  # fmt: skip


@pytest.mark.parametrize("schema", LARGE.values(), ids=LARGE)
def test_short_schemas_do_not_become_large(schema):
    """At most as many parts as a request may have."""
    reduced = structure({"type": "object", **schema})

    assert reduced["type"] == "object"
    assert len(json.dumps(reduced)) < 1 << 20


INVALID: tuple[dict[str, Any], ...] = (
    {"properties": [1], "allOf": [{"properties": {"a": {}}}]},
    {"properties": "x", "required": 1, "allOf": [{"properties": 1, "required": ["a"]}]},
    {"properties": {"a": {"type": "integer", "minimum": 10**400, "maximum": -(10**400)}}},
)


@pytest.mark.parametrize("schema", INVALID, ids=str)
def test_invalid_values_say_nothing(schema):
    """Neither members of another type nor numbers beyond those of floats."""
    assert check_schema(structure({"type": "object", **schema}), "")


@pytest.mark.parametrize(
    ("schema", "reduced"),
    [
        ({"maximum": 10**30, "type": "integer"}, {"type": "integer"}),
        ({"const": 10**25}, None),
        ({"enum": ["a", [{"b": 2**64}]]}, None),
        ({"type": "string", "default": -(10**20)}, {"type": "string"}),
    ],
)
def test_integers_of_more_than_64_bits_are_dropped(schema, reduced):
    """The engines' JSON has none. A strict schema with one is refused with its path."""
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    expected = ANY_OBJECT if reduced is None else {**whole, "properties": {"v": reduced}}

    assert reduced_arguments(whole, 1)[0] == expected
    with pytest.raises(InvalidRequest, match="an integer of more than 64 bits") as refused:
        check_schema(whole, "tools[0].function.parameters")
    assert str(refused.value.param).startswith("tools[0].function.parameters.properties.v.")
