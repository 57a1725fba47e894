import json
from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import StructuredOutputs
from openai_frontend.serving.constraints.response_format import requested_format
from schemas.response_format import MAX_CONSTRAINT_BYTES
from schemas.sampling import SamplingFields

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


def constraint(**fields: Any) -> StructuredOutputs | None:
    form = requested_format(SamplingFields.model_validate({"model": "m", **fields}))
    return None if form is None else form.structured


FORMATS: list[tuple[dict[str, Any], StructuredOutputs | None]] = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, StructuredOutputs(json_object=True)),
    (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        StructuredOutputs(json=SCHEMA),
    ),
]


@pytest.mark.parametrize(("response_format", "expected"), FORMATS)
def test_response_format_becomes_structured_outputs(response_format, expected):
    assert expected == constraint(response_format=response_format)


def test_structural_tag_passes_as_its_json():
    given = constraint(response_format=TAG)

    assert json.loads(given.structural_tag or "") == TAG


GIVEN: list[dict[str, Any]] = [
    {"json": SCHEMA},
    {"regex": "a+"},
    {"choice": ["a", "b"]},
    {"grammar": "root ::= 'a'"},
    {"json_object": True},
    {"json": SCHEMA, "disable_any_whitespace": True},
]


@pytest.mark.parametrize("fields", GIVEN, ids=str)
def test_structured_outputs_pass_unchanged(fields):
    assert StructuredOutputs(**fields) == constraint(structured_outputs=fields)


def test_schema_may_be_a_json_text():
    """The server parses it, so the text cannot inject another member."""
    given = constraint(structured_outputs={"json": json.dumps(SCHEMA)})

    assert given == StructuredOutputs(json=SCHEMA)


def test_empty_schema_still_requires_json():
    """It allows every value."""
    assert constraint(structured_outputs={"json": {}}) == StructuredOutputs(json={})


@pytest.mark.parametrize(("text", "schema"), [("true", {}), ("false", {"not": {}})])
def test_boolean_schema_becomes_an_object(text, schema):
    """Which engines can read."""
    assert constraint(guided_json=text) == StructuredOutputs(json=schema)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"structured_outputs": {"regex": None, "new": None, "disable_new": False}},
        {"response_format": {"type": "text", "json_schema": None, "schema": None}},
    ],
)
def test_request_without_a_format_is_unconstrained(fields):
    """Clients also send null for members that they do not use."""
    assert constraint(**fields) is None


DIALECTS: list[tuple[dict[str, Any], StructuredOutputs]] = [
    ({"guided_json": SCHEMA}, StructuredOutputs(json=SCHEMA)),
    ({"guided_json": json.dumps(SCHEMA)}, StructuredOutputs(json=SCHEMA)),
    ({"guided_regex": "a+"}, StructuredOutputs(regex="a+")),
    ({"guided_choice": ["a", "b"]}, StructuredOutputs(choice=["a", "b"])),
    ({"guided_grammar": "root ::= 'a'"}, StructuredOutputs(grammar="root ::= 'a'")),
    ({"regex": "a+"}, StructuredOutputs(regex="a+")),
    ({"ebnf": "root ::= 'a'"}, StructuredOutputs(grammar="root ::= 'a'")),
    (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " "},
        StructuredOutputs(json=SCHEMA, whitespace_pattern=" "),
    ),
    (
        {"guided_regex": "a", "guided_decoding_backend": "outlines"},
        StructuredOutputs(regex="a"),
    ),
]


@pytest.mark.parametrize(("fields", "expected"), DIALECTS, ids=str)
def test_older_constraint_fields_equal_structured_outputs(fields, expected):
    """The names come from older versions of vLLM and from SGLang."""
    assert constraint(**fields) == expected


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"json": '{}, "regex": "x"'}}, "structured_outputs.json"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
    ({"ebnf": "a", "structured_outputs": {"regex": "a"}}, "ebnf"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": {"minimum": 2**70}}, "guided_json"),
    ({"guided_json": f'{{"minimum": {2**70}}}'}, "guided_json.minimum"),
    ({"guided_json": {"type": "x"}}, "guided_json.type"),
    ({"structured_outputs": {"json": '{"type": "x"}'}}, "structured_outputs.json.type"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"guided_regex": "a", "guided_decoding_backend": "mine"}, "guided_decoding_backend"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"items": {"$ref": "http://x"}}},
            }
        },
        "response_format.json_schema.schema.items.$ref",
    ),
    ({"structured_outputs": {"choice": ["x" * 300_000]}}, "structured_outputs"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"description": "x" * 300_000}},
            }
        },
        "response_format",
    ),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
    (
        {"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": {}}}},
        "response_format.json_schema",
    ),
    ({"response_format": {"type": "text", "format": {}}}, "response_format.format"),
    ({"structured_outputs": {"regx": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs"),
    ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_invalid_constraint_is_refused_by_path(fields, param):
    """Examples: several constraints, none, an invalid or a too large schema."""
    with pytest.raises(InvalidRequest) as refused:
        constraint(**fields)

    assert param == refused.value.param


@pytest.mark.parametrize(
    ("size", "fits"), [(MAX_CONSTRAINT_BYTES, True), (MAX_CONSTRAINT_BYTES + 1, False)]
)
def test_constraint_size_limit(size, fits):
    """A constraint at the limit in bytes of JSON is accepted; one byte more is an error of the
    field.
    """
    given: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": ""}}}
    frame = len(json.dumps(given, separators=(",", ":")))
    given["json_schema"]["schema"]["const"] = "a" * (size - frame)

    if fits:
        assert constraint(response_format=given) is not None
        return
    with pytest.raises(InvalidRequest, match=f"the limit is {MAX_CONSTRAINT_BYTES}") as refused:
        constraint(response_format=given)
    assert refused.value.param.startswith("response_format")
