"""What an argument may be: as a validator says, and as the author of the schema means."""

import json
from time import process_time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.parsing.argument_schema import ArgumentSchema, argument_types
from openai_frontend.parsing.arguments import Expected, typed_json
from tests.cpu_time import budget
from tests.examples import scaled

TEXTS = [
    "94103",
    "-1",
    "2.5",
    "1.0",
    "true",
    "null",
    "[1, 2]",
    "[]",
    '["a"]',
    '{"a": 1}',
    "{}",
    "x",
]
STRING = {"type": "string"}


def written(schema: object, text: str, name: str = "a") -> Any:
    """The value that the parser writes for the text of an argument."""
    argument = ArgumentSchema(schema)
    expected = Expected(argument.types(name), lambda value: argument.allows(name, value))
    return json.loads(typed_json(text, expected))


# Ways to state the schema `p` of the argument `a`
PLACES: dict[str, Any] = {
    "properties": lambda p: {"properties": {"a": p}},
    "reference at the top": lambda p: {
        "$ref": "#/$defs/f",
        "$defs": {"f": {"type": "object", "properties": {"a": p}}},
    },
    "chain of references": lambda p: {
        "properties": {"a": {"$ref": "#/definitions/x"}},
        "definitions": {"x": {"$ref": "#/definitions/y"}, "y": p},
    },
    "escapes": lambda p: {
        "properties": {"a": {"$ref": "#/$defs/a~1b~0c%25d%20e"}},
        "$defs": {"a/b~c%d e": p},
    },
    "reference into a list": lambda p: {"properties": {"a": {"$ref": "#/x/1"}}, "x": [0, p]},
    "reference to the root": lambda p: {"properties": {"a": p, "b": {"$ref": "#"}}},
    "anchor": lambda p: {
        "properties": {"a": {"$ref": "#here"}},
        "$defs": {"x": {"$anchor": "here", "allOf": [p]}},
    },
    "allOf at the top": lambda p: {"allOf": [{"properties": {"b": {}}}, {"properties": {"a": p}}]},
    "anyOf at the top": lambda p: {
        "anyOf": [{"properties": {"a": p}}, {"properties": {"a": p, "b": STRING}}]
    },
    "oneOf in a reference": lambda p: {
        "$ref": "#/$defs/f",
        "$defs": {"f": {"oneOf": [{"properties": {"a": p}}, {"properties": {"a": False}}]}},
    },
    "both branches of a condition": lambda p: {
        "if": {"required": ["b"]},
        "then": {"properties": {"a": p}},
        "else": {"properties": {"a": p}},
    },
    "dependent schema": lambda p: {"dependentSchemas": {"a": {"properties": {"a": p}}}},
    "additionalProperties": lambda p: {"properties": {"b": {}}, "additionalProperties": p},
    "unevaluatedProperties": lambda p: {"properties": {"b": {}}, "unevaluatedProperties": p},
    "patternProperties": lambda p: {
        "patternProperties": {"^[a-c]$": p, "^x": {"type": "integer"}},
        "additionalProperties": {"type": "array"},
    },
}

_numbers = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={"minimum": st.integers(-2, 5), "exclusiveMaximum": st.integers(0, 99)},
)
_values = st.sampled_from([None, True, 94103, 2.5, "94103", "true", "x", [1, 2], {"a": 1}])
_leaves = st.one_of(
    st.just(STRING),
    _numbers,
    st.fixed_dictionaries({"type": st.lists(st.sampled_from(
        ["string", "null", "boolean", "integer", "array", "object"]), min_size=1, unique=True)}),
    st.fixed_dictionaries({"enum": st.lists(_values, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": _values}),
    st.just({"type": "array", "items": {"type": "integer"}}),
    st.just({"type": "array", "prefixItems": [STRING], "minItems": 1}),
    st.just({"type": "object", "properties": {"a": STRING}, "required": ["a"]}),
    st.just({"type": "object", "additionalProperties": False}),
    st.just({"type": "string", "maxLength": 3}),
)  # fmt: skip
schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.tuples(
            st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, min_size=1, max_size=3)
        ).map(lambda pair: {pair[0]: pair[1]}),
        inner.map(lambda each: {"not": each}),
        st.tuples(inner, inner, inner).map(
            lambda parts: dict(zip(("if", "then", "else"), parts, strict=True))
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=scaled(300))
@given(schema=schemas, place=st.sampled_from(list(PLACES)), text=st.sampled_from(TEXTS))
def test_arguments_are_what_the_schema_allows(schema: Any, place: str, text: str) -> None:
    """A text stays one if only that validates; if its JSON validates, it is JSON."""
    root = PLACES[place](schema)
    validator = jsonschema.Draft202012Validator(root)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    allowed = [each for each in (value, text) if validator.is_valid({"a": each})]

    if allowed:  # otherwise, whatever is written is wrong
        assert json.dumps(written(root, text)) == json.dumps(allowed[0])


# Schemas that say "string" although a validator would allow other JSON
MEANT: dict[str, Any] = {
    "pattern": {"pattern": "^[0-9]{5}$"},
    "minLength": {"minLength": 1},
    "maxLength": {"maxLength": 9, "description": "d"},
    "format": {"format": "date"},
    "contentEncoding": {"contentEncoding": "base64"},
    "contentMediaType": {"contentMediaType": "application/json"},
    "all of two": {"allOf": [{"pattern": "^9"}, {"minLength": 2}]},
    "a default": {"default": "94110", "title": "Zip"},
    "examples": {"examples": ["94110", "10001"]},
    "OpenAPI's example": {"example": "94110"},
    "capitals": {"type": "STRING"},
    "nullable": {"type": "string", "nullable": True},
    "nullable enum": {"enum": ["94103", "true"], "nullable": True},
    "nullable reference": {"nullable": True, "allOf": [{"$ref": "#/$defs/zip"}]},
    "a file": {"type": "file"},
    "not others": {"not": {"type": ["number", "boolean", "array", "object", "null"]}},
}


@pytest.mark.parametrize("schema", MEANT.values(), ids=MEANT)
@pytest.mark.parametrize("place", ["properties", "additionalProperties", "reference at the top"])
def test_schemas_mean_strings(schema: Any, place: str) -> None:
    """Keywords about strings, and examples of nothing else, show a string."""
    root = PLACES[place](schema)
    root.setdefault("$defs", {})["zip"] = STRING

    assert [written(root, text) for text in ("94103", "true", "[1, 2]")] == [
        "94103",
        "true",
        "[1, 2]",
    ]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"minimum": 1}, 94103),
        ({"format": "int64"}, 94103),
        ({"default": None}, 94103),
        ({"default": 5}, 94103),
        ({"title": "anything"}, 94103),
        ({"type": "integer", "format": "int32", "nullable": True}, 94103),
        ({"type": ["string", "integer"]}, 94103),
        ({"anyOf": [STRING, {"type": "integer", "maximum": 99}]}, "94103"),
        ({"anyOf": [STRING, {"enum": [1, 2]}]}, "94103"),
        ({"anyOf": [STRING, {}]}, 94103),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/properties/a"}]}, "94103"),
        ({"anyOf": [{"$ref": "#/properties/a/x"}] * 2, "x": STRING}, "94103"),
        (True, 94103),
        ({"type": "integer", "maximum": 99}, 94103),
        ({"allOf": [{"pattern": "^9"}, {"type": "integer"}]}, 94103),
        ({"$ref": "https://example.com/other"}, 94103),
        ({"$ref": "#/properties/a"}, 94103),
        ({"oneOf": [STRING, {"type": "string", "format": "date"}]}, "94103"),
        ({"$ref": "zip.json", "$defs": {"z": {"$id": "zip.json", "type": "string"}}}, "94103"),
    ],
)
def test_numbers_and_strings(schema: Any, expected: Any) -> None:
    """Other types are found as well, and schemas that contradict themselves have a type."""

    assert written({"properties": {"a": schema}}, "94103") == expected


@pytest.mark.parametrize(
    "root",
    [
        {"anyOf": [{"properties": {"a": STRING}}, {"properties": {"b": STRING}}]},
        {"if": {"required": ["b"]}, "then": {"properties": {"a": STRING}}},
        {"dependentSchemas": {"b": {"properties": {"a": STRING}}}},
        {"dependencies": {"b": {"properties": {"a": STRING}}, "c": ["b"]}},
        {"allOf": [{"properties": {"a": STRING}}, {"additionalProperties": False}]},
        {"patternProperties": {"^(a|b)+$": STRING}},
        {"properties": {"b": {"type": "integer"}}, "allOf": [{"additionalProperties": STRING}]},
        {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"properties": {"a": STRING}}}},
    ],
    ids=range(8),
)
def test_a_part_that_may_not_apply_still_shows_the_type(root: Any) -> None:
    """An alternative that does not mention an argument does not make it anything."""

    assert written(root, "94103") == "94103"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3),
       lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
           "properties", "a", "type", "anyOf", "$ref", "items", "enum", "const", "not", "minimum",
           "if", "required", "patternProperties", "default", "allOf", "multipleOf", "minItems",
           "$id", "minLength", "examples", "dependencies"]), inner, max_size=4), max_leaves=20),
       st.sampled_from(TEXTS))  # fmt: skip
def test_no_schema_fails_the_call(schema: Any, text: str) -> None:
    """A schema that is not one says nothing."""

    assert written(schema, text) in (text, json.loads(text) if text != "x" else text)


def test_hostile_schemas_take_little_time() -> None:
    """Neither deep, wide nor repeated subschemas nor patterns delay the parser."""
    deep: Any = STRING
    for _ in range(500):
        deep = {"anyOf": [deep]}
    wide = {"anyOf": [{"anyOf": [{"type": "integer"} for _ in range(99)]} for _ in range(99)]}
    root = {
        "properties": {"deep": deep, "wide": wide},
        "patternProperties": {"(x+)+$": {}, "x*x*x*x*$": {}, "x{1,60}y": {}},
    }
    begun_s = process_time()

    for name in ("deep", "wide", "x" * 60, *map(str, range(100))):
        argument_types(root, name)

    assert process_time() - begun_s < budget(0.5)
