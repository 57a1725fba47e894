"""JSON in requests that no schema describes."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

import schemas
from schemas.json_value import JSONObject, JSONValue
from schemas.sampling import RequestFields

CHECK = TypeAdapter(JSONValue).core_schema["function"]
# The converter of tensors checks each of their numbers (openai_frontend/kserve/json_tensors.py)
CHECKED_ELSEWHERE = {"RequestInput": {"data"}, "InferRequest": {"inputs.data"}}


def request_schemas() -> list[type[RequestFields]]:
    for module in pkgutil.iter_modules(schemas.__path__, "schemas."):
        importlib.import_module(module.name)
    found: list[type[RequestFields]] = []
    left: list[type[RequestFields]] = [RequestFields]
    while left:
        found.append(left.pop())
        left += found[-1].__subclasses__()
    return [each for each in found if each.__module__.startswith("schemas.")]


def unchecked(schema: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The paths of values of any kind in pydantic's schema."""
    if isinstance(schema, list | tuple):
        for each in schema:
            yield from unchecked(each, path)
    elif isinstance(schema, dict) and schema.get("function") != CHECK:
        if schema.get("type") == "any":
            yield ".".join(path)
        if schema.get("extra_behavior") == "allow" and "extras_schema" not in schema:
            yield ".".join((*path, "<unknown>"))
        for name, field in schema.get("fields", {}).items():
            yield from unchecked(field, (*path, name))
        for name in schema.keys() - {"fields", "metadata", "serialization"}:
            yield from unchecked(schema[name], path)


@pytest.mark.parametrize("schema", request_schemas(), ids=lambda each: each.__name__)
def test_all_json_of_any_kind_is_checked_for_infinity(schema):
    """Unknown members too, at all levels."""
    found = set(unchecked(TypeAdapter(schema).core_schema))

    assert CHECKED_ELSEWHERE.get(schema.__name__, set()) == found


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 400 + ".5"])
@pytest.mark.parametrize(
    ("kind", "text", "path"),
    [
        (JSONValue, "%s", ()),
        (JSONValue, "[[1, %s]]", (0, 1)),
        (JSONObject, '{"a": 1, "b": [{"c": %s}]}', ("b", 0, "c")),
    ],
)
def test_infinite_number_is_refused_with_its_path(kind, text, path, number):
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_json(text % number)

    problem = refused.value.errors()[0]
    assert (path, "finite_number") == (problem["loc"], problem["type"])


@pytest.mark.parametrize("text", ["1e308", "-0.0", "1" * 400, '"1e999"', "null", "[[], {}]"])
def test_other_values_are_kept(text):
    assert json.loads(text) == TypeAdapter(JSONValue).validate_json(text)
