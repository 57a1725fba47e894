"""Constraints as prepared for vLLM's grammar engines; no engine runs."""

import json
from typing import Any

import pytest

from openai_frontend.engines.vllm.grammars import backends as grammars
from openai_frontend.engines.vllm.grammars.json_schema import (
    Unenforceable,
    enforceable_schema,
    rewritten,
)
from openai_frontend.engines.vllm.grammars.patterns import check_expansion
from openai_frontend.engines.vllm.grammars.schema_drafts import current_draft
from tests.vllm.random_answers import RandomAnswers

pytestmark = pytest.mark.engine

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def given(**constraint: Any) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(**constraint)


def prepared(**constraint: Any) -> Any:
    return grammars.prepare_constraint(given(**constraint))


def tag(form: dict[str, Any]) -> str:
    return json.dumps({"type": "structural_tag", "format": form})


@pytest.mark.parametrize(
    ("constraint", "schema"),
    [
        ({"json": SCHEMA}, SCHEMA),
        ({"json": json.dumps(SCHEMA)}, SCHEMA),
        ({"json_object": True}, {"type": "object", "additionalProperties": True}),
    ],
)
def test_schema_becomes_a_structural_tag(constraint, schema):
    """The tag bounds the whitespace in xgrammar."""
    form = json.loads(prepared(**constraint).structural_tag)["format"]

    assert form == {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1}


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "a"},
        {"choice": ["a"]},
        {"json": "{bad"},
    ],
    ids=str,
)
def test_other_constraints_are_unchanged(constraint):
    assert prepared(**constraint) == given(**constraint)


def test_deeply_nested_schema_is_refused():
    """The error comes before any function walks through the schema."""
    schema: dict[str, Any] = {}
    for _ in range(2000):
        schema = {"properties": {"a": schema}}

    with pytest.raises(ValueError, match="json is nested too deeply: at most 64"):
        prepared(json=schema)


@pytest.mark.parametrize(
    ("config", "free"),
    [
        ({}, True),
        ({"backend": "xgrammar"}, True),
        ({"backend": "xgrammar", "disable_any_whitespace": True}, False),
        ({"backend": "guidance"}, False),
    ],
    ids=str,
)
def test_whitespace_and_backend_of_model_json_are_kept(config, free):
    """Grammars are prepared only for `auto` and `xgrammar`, and only if any whitespace
    is allowed.
    """
    from vllm.config import StructuredOutputsConfig

    assert grammars.prepares_grammars(StructuredOutputsConfig(**config)) == free


BEYOND: list[dict[str, Any]] = [
    {"type": "number", "multipleOf": 3},
    {"not": {"type": "string"}},
    {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"type": "object", "unevaluatedProperties": False},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "contains": {"type": "integer"}},
    {"allOf": [{"type": "string"}, {"enum": ["a"]}]},
    {"type": "string", "pattern": "a+", "maxLength": 3},
    {"type": "string", "format": "date", "minLength": 3},
    {"$ref": "#/$defs/n", "minimum": 5, "$defs": {"n": {"type": "integer"}}},
    {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]},
    {"type": "object", "patternProperties": {"^a": {}}, "properties": {"b": {}}},
    {"type": "object", "minProperties": 2},
    {"type": "string", "pattern": "[a-z]{0,200}"},
    {"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"properties": {"deep": {"items": {"multipleOf": 2}}}},
    {"propertyNames": {"enum": ["a"]}, "required": ["b"]},
    {"type": "number", "minimum": 1e-7},
    {"const": "abc", "maxLength": 2},
    {"const": 3, "minimum": 5},
    {"const": {"a": 1}, "required": ["b"]},
]


@pytest.mark.parametrize("schema", BEYOND, ids=str)
def test_schema_that_xgrammar_enforces_partly_is_refused(schema):
    """xgrammar would ignore the keyword, so it never gets such a schema."""
    with pytest.raises(Unenforceable):
        enforceable_schema(current_draft(schema))


ONE_OF = {
    "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
    "$defs": {
        name: {
            "type": "object",
            "properties": {"kind": {"const": name}, "lives": {"type": "integer"}},
            "required": ["kind"],
        }
        for name in ("cat", "dog")
    },
}

HELD: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"type": "array", "maxItems": 2}, ["[]", "[1, 2]"], ["[1, 2, 3]"]),
    ({"type": "object", "required": ["b"]}, ['{"b": 1}'], ["{}"]),
    ({"minimum": 5}, ["7"], ["3", '"x"']),
    ({"items": {"type": "integer"}}, ["[1]"], ['["a"]', "3"]),
    ({"type": "integer", "enum": [1, "a"]}, ["1"], ['"a"']),
    ({"type": "string", "anyOf": [{"maxLength": 1}, {"pattern": "ab"}]}, ['"ab"'], ["3"]),
    ({"type": "string", "format": "weird"}, ['"x"'], ["3"]),
    (
        {"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}},
        ["{}", '{"n": {"n": {}}}'],
        ['{"n": 1}'],
    ),
    ({"type": "string", "pattern": "q(a+b)?z"}, ['"qz"', '"qaabz"'], ['"qbz"']),
    ({"type": ["object", "null"]}, ['{"a": 1}', "null"], ["[]"]),
    ({"maxProperties": 1}, ["{}", '{"a": 1}'], ['{"a": 1, "b": 2}']),
    (ONE_OF, ['{"kind": "cat", "lives": 9}', '{"kind": "dog"}'], ['{"kind": "cow"}', "{}"]),
    ({"anyOf": [False, {"type": "null"}]}, ["null"], ["1"]),
    ({"const": None}, ["null"], ["1"]),
    ({"type": "integer", "enum": [1.0, 2.5]}, ["1"], ["2.5"]),
    ({"type": "integer", "if": {"minimum": 3}}, ["1"], ['"x"']),
]


FORMATS = [
    ("date", ["2024-02-29", "1999-12-31"], ["2023-02-29", "2024-06-31", "0000-01-01"]),
    ("time", ["23:59:00Z", "01:02:03.4+05:30"], ["23:59:60Z", "1:02:03Z"]),
    ("date-time", ["2024-02-29T00:00:00Z"], ["2024-02-30T00:00:00Z", "2024-02-29"]),
    ("ipv4", ["255.0.10.9"], ["256.0.0.1", "01.2.3.4"]),
    ("json-pointer", ["", "/a~1b/0"], ["/a~2", "a", "/\n"]),
    ("relative-json-pointer", ["0#", "12/a"], ["01", "/a"]),
    ("email", ["a@b.de"], ["ab"]),
]


@pytest.mark.parametrize(("name", "right", "wrong"), FORMATS, ids=str)
def test_formats_follow_their_standards(name, right, wrong):
    possible = RandomAnswers(prepared(json={"type": "string", "format": name}).structural_tag)

    assert [possible.takes(f'"{text}"') for text in right] == [True] * len(right)
    assert [possible.takes(f'"{text}"') for text in wrong] == [False] * len(wrong)


def test_error_has_the_path_of_the_unenforceable_part():
    schema: dict[str, Any] = {"properties": {"a": {"items": {"anyOf": [{}, {"not": {}}]}}}}

    with pytest.raises(
        Unenforceable, match=r"^properties.a.items.anyOf\[1\]: 'not' cannot be enforced"
    ):
        enforceable_schema(schema)


NEVER: list[tuple[dict[str, Any], str]] = [
    ({"type": "integer", "const": "a"}, "no value of 'enum' or 'const' matches 'type'"),
    ({"type": "integer", "multipleOf": 9999991}, "'multipleOf' of more than 4 digits"),
    ({"type": "integer", "multipleOf": -2}, "'multipleOf' .* below 0"),
    ({"type": "integer", "minimum": 2**64}, "exceeds maximum"),
    ({"type": "integer", "minimum": -(2**64), "multipleOf": 2}, "'multipleOf'"),
    ({"type": "number", "minimum": 1e-30, "maximum": 1e-29}, "more than 6 decimals"),
    ({"type": "array", "items": {"multipleOf": 2}, "maxItems": 2**20}, "'multipleOf'"),
    ({"type": "object", "propertyNames": True}, "propertyNames"),
    ({"anyOf": [{"const": number} for number in range(2001)]}, "'anyOf' of more than 2000"),
    ({"oneOf": [{"const": number} for number in range(3000)]}, "'oneOf' of more than 2000"),
    ({"oneOf": [{"pattern": "a"}] * 5000}, "alternatives"),
]


@pytest.mark.parametrize(("schema", "reason"), NEVER, ids=str)
def test_schema_that_no_engine_enforces_is_refused_with_its_path(schema, reason):
    """Some would be enforced partly, others take minutes and gigabytes."""
    whole = {"type": "object", "properties": {"x": schema}}
    form = tag({"type": "json_schema", "json_schema": whole})

    with pytest.raises(ValueError, match=rf"^structured_outputs: properties\.x.*{reason}"):
        prepared(json=whole)
    with pytest.raises(ValueError, match=rf"schemas\[0\]: properties\.x.*{reason}"):
        prepared(structural_tag=form)


@pytest.mark.parametrize(("schema", "right", "wrong"), HELD, ids=str)
def test_whole_schema_is_enforced(schema, right, wrong):
    """Keywords that xgrammar ignores or misreads are rewritten."""
    possible = RandomAnswers(prepared(json=schema).structural_tag)

    assert [possible.takes(text) for text in right] == [True] * len(right)
    assert [possible.takes(text) for text in wrong] == [False] * len(wrong)


def test_invalid_schema_is_named_by_its_index():
    """The index tells the several schemas of one grammar apart."""
    schemas = [{"type": "integer"}, {"type": "string", "pattern": "("}, {"type": "null"}]
    forms = [{"type": "json_schema", "json_schema": schema} for schema in schemas]

    with pytest.raises(ValueError, match=r"structured_outputs.schemas\[1\]: .*parenthesis"):
        prepared(structural_tag=tag({"type": "or", "elements": forms}))


@pytest.mark.parametrize("more", [{}, {"strict": False}], ids=str)
def test_unsupported_schema_in_a_structural_tag_is_named(more):
    """No member of the tag turns off what it asks for."""
    form = {"type": "json_schema", "json_schema": {"items": {"not": {}}}, **more}

    with pytest.raises(ValueError, match=r"structured_outputs.schemas\[0\]: items: 'not'"):
        prepared(structural_tag=tag(form))


def test_reduced_schema_keeps_what_can_be_enforced():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^x$", "maxLength": 3},
            "b": {"type": "integer", "multipleOf": 2, "minimum": 1},
            "c": {"type": "array", "items": {"type": "null"}, "uniqueItems": True},
        },
        "required": ["a"],
        "if": {"required": ["b"]},
        "then": {"required": ["c"]},
    }

    assert rewritten(schema).schema == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "x"},
            "b": {"type": "integer", "minimum": 1},
            "c": {"type": "array", "items": {"type": "null"}},
        },
        "required": ["a"],
    }


EXPANDING: list[dict[str, Any]] = [
    {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    {"grammar": 'root ::= x{1,1000}\nx ::= y{1,1000}\ny ::= "a"{1,1000}'},
    {"grammar": 'start: x ~ 1..1000\nx: y ~ 1000\ny: "a" ~ 2..1000'},
    {"structural_tag": tag({"type": "regex", "pattern": "(a{1,1000}){1,1000}"})},
    {"structural_tag": tag({"type": "repeat", "min": 1, "max": 9, "content": {}})},
]


@pytest.mark.parametrize("constraint", EXPANDING, ids=str)
def test_nested_repetitions_are_refused(constraint):
    """They would take minutes, and all memory, to compile."""
    with pytest.raises(ValueError, match=r"^structured_outputs: "):
        prepared(**constraint)


@pytest.mark.parametrize("text", [r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", "a{5000}", "{}"])
def test_ordinary_repetitions_are_accepted(text):
    """Identifiers and long texts need them."""
    check_expansion(text)


def test_size_of_a_refused_repetition_is_reported():
    """The error has the expanded size and the limit."""
    with pytest.raises(ValueError, match=r"counts is 80000, the limit 65536$"):
        check_expansion("a{10000}")


@pytest.mark.parametrize("grammar", ["root ::= ", "root ::= (", "x ::= 'a'"])
def test_invalid_ebnf_is_refused(grammar):
    """The error has the reason; the text is not parsed as another kind of grammar."""
    with pytest.raises(ValueError, match=r"^structured_outputs: .*"):
        prepared(grammar=grammar)


def test_too_many_optional_properties_are_refused():
    """Their compile time grows with the square of their number."""
    schema = {"type": "object", "properties": {f"p{i}": {} for i in range(1001)}}

    with pytest.raises(ValueError, match="1000 properties of an object may be optional"):
        prepared(json=schema)
