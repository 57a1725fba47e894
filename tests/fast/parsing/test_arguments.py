"""The text of an argument takes the type that the tool's schema gives it."""

from time import process_time
from typing import Any

import pytest

from openai_frontend.parsing.argument_schema import argument_types
from openai_frontend.parsing.arguments import Expected, typed_json
from tests.cpu_time import budget


@pytest.mark.parametrize("schema", [None, {}, {"properties": []}, {"properties": {"a": 1}}])
def test_schemas_without_types(schema: Any) -> None:
    """Without a valid schema, no type is known."""

    assert not argument_types(schema, "a")


def test_nested_alternatives() -> None:
    """They do not multiply: a schema of a few kilobytes does not delay parsing."""
    levels = {str(at): {"anyOf": [{"$ref": f"#/$defs/{at + 1}"}] * 100} for at in range(3)}
    schema = {
        "properties": {"a": {"$ref": "#/$defs/0"}, "b": {"anyOf": [{"type": "string"}] * 1000}},
        "$defs": {**levels, "3": {"type": "string"}},
    }

    begun_s = process_time()
    types = [argument_types(schema, name) for name in ("a", "b")]

    assert types == [{"string"}, {"string"}]
    assert process_time() - begun_s < budget(0.1)


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("5", {"integer"}, "5"),
        (" 5\n", {"number"}, "5"),
        ("5", {"string"}, '"5"'),
        ("5", {"string", "null"}, '"5"'),
        ("null", {"string", "null"}, "null"),
        ("null", {"string"}, '"null"'),
        ("None", {"string", "null"}, '"None"'),
        ("True", {"string", "boolean"}, '"True"'),
        ("five", {"integer"}, '"five"'),
        ("True", {"boolean"}, "true"),
        ("true", {"boolean"}, "true"),
        ("None", {"integer", "null"}, "null"),
        ("{'a': 1}", {"object"}, '{"a":1}'),
        ('{"a": 1}', {"object"}, '{"a": 1}'),
        ('{"a": 1}', {"string"}, '"{\\"a\\": 1}"'),
        ('{"a": 1}', set(), '{"a": 1}'),
        ("5", set(), "5"),
        ("(1, 2)", set(), '"(1, 2)"'),
        ('"quoted"', set(), '"\\"quoted\\""'),
        ("", {"integer"}, '""'),
        ("  two ", set(), '"  two "'),
    ],
)
def test_typed_json(text: str, types: set[str], expected: str) -> None:
    """A value of an allowed type if the text is one, otherwise a string."""

    assert expected == typed_json(text, Expected(frozenset(types)))
