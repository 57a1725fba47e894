import tracemalloc
from time import process_time
from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.constraints.json_schema import (
    MAX_NESTING,
    MAX_PARTS,
    MAX_PROPERTIES,
    check_schema,
    references,
)
from tests.cpu_time import budget

PLACE = "tools[2].function.parameters"


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


REFUSED: list[tuple[Any, str]] = [
    ({"type": "text"}, f"{PLACE}.type"),
    ({"properties": {"a": {"type": ["string", "list"]}}}, f"{PLACE}.properties.a.type"),
    ({"type": [{"type": "null"}]}, f"{PLACE}.type"),
    ({"type": {}}, f"{PLACE}.type"),
    ({"prefixItems": [{}], "$ref": "#/prefixItems/" + "9" * 5000}, f"{PLACE}.$ref"),
    ({"properties": []}, f"{PLACE}.properties"),
    ({"properties": {"a": 3}}, f"{PLACE}.properties.a"),
    ({"anyOf": []}, f"{PLACE}.anyOf"),
    ({"anyOf": [{}, {"enum": []}]}, f"{PLACE}.anyOf[1].enum"),
    ({"required": "a"}, f"{PLACE}.required"),
    ({"required": [1]}, f"{PLACE}.required"),
    ({"items": {"$ref": "https://example.com/a.json"}}, f"{PLACE}.items.$ref"),
    ({"$ref": "other.json#/a"}, f"{PLACE}.$ref"),
    ({"$ref": 3}, f"{PLACE}.$ref"),
    ({"$ref": "#/$defs/a"}, f"{PLACE}.$ref"),
    ({"$ref": "#anchor"}, f"{PLACE}.$ref"),
    ({"$ref": "#/title", "title": "x"}, f"{PLACE}.$ref"),
    ({"$dynamicRef": "#a"}, f"{PLACE}.$dynamicRef"),
    ({"items": {"$id": "b.json", "items": {"$ref": "#/a"}}, "a": {}}, f"{PLACE}.items.$id"),
    (
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        f"{PLACE}.$defs.b.$ref",
    ),
    ({"properties": {f"p{i}": {} for i in range(MAX_PROPERTIES + 1)}}, PLACE),
    ({"$defs": {"x": {"properties": {f"p{i}": {} for i in range(10_000)}}}}, PLACE),
    (nested(MAX_NESTING), PLACE),
    ({"anyOf": [{}] * MAX_PARTS}, PLACE),
    (
        {"properties": {"a.properties.b": {"type": "x"}, "a": {"properties": {"b": {}}}}},
        f"{PLACE}.properties.a.properties.b.type",
    ),
    ([], PLACE),
]


@pytest.mark.parametrize(("schema", "place"), REFUSED, ids=lambda each: str(each)[:60])
def test_invalid_schema_is_refused_by_path(schema, place):
    """Examples: no schema, an external or circular reference, a schema that is too large."""
    with pytest.raises(InvalidRequest) as refused:
        check_schema(schema, PLACE)

    assert refused.value.param == place


TAKEN: list[Any] = [
    {},
    True,
    {"type": ["string", "null"], "enum": ["a", None]},
    {"$ref": "#/$defs/node", "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}},
    {"properties": {"self": {"$ref": "#"}}},
    {"properties": {"a": {}, "b": {"$ref": "#/properties/a"}}},
    {"$defs": {"a/b~c": {}}, "$ref": "#/$defs/a~1b~0c"},
    {"anyOf": [{}, {"$ref": "#/anyOf/0"}]},
    {"items": [{"type": "integer"}], "properties": {"properties": {"type": "object"}}},
    {"properties": {f"p{i}": {} for i in range(MAX_PROPERTIES)}},
    nested(MAX_NESTING - 1),
]


@pytest.mark.parametrize("schema", TAKEN, ids=lambda each: str(each)[:60])
def test_valid_schema_is_accepted(schema):
    """References within a schema, including to itself, and sizes up to the limits are valid."""
    check_schema(schema, PLACE)


def test_chain_of_references_takes_linear_time():
    """A chain of 4,000 took 11 s when the check followed each reference from its start."""
    chain = {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(4000)}

    begun_s = process_time()
    check_schema({"$defs": {**chain, "4000": {"type": "string"}}}, PLACE)

    assert process_time() - begun_s < budget(0.5)


def test_paths_are_built_only_for_errors():
    """Otherwise the paths of this schema take 3 GB."""
    schema: dict[str, Any] = {"properties": {"x" * 200_000: {"anyOf": [{}] * (MAX_PARTS - 100)}}}

    tracemalloc.start()
    check_schema(schema, PLACE)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 32 * 1024 * 1024


def test_references_are_found_at_every_level():
    schema = {"$ref": "#/a", "a": {}, "items": {"anyOf": [{"$ref": "#"}]}}

    assert sorted(references(schema)) == ["#", "#/a"]


class Counted(dict[str, Any]):
    """A part of a schema that counts accesses."""

    looks = 0

    def __contains__(self, key: object) -> bool:
        Counted.looks += 1
        return super().__contains__(key)

    def items(self) -> Any:
        Counted.looks += 1
        return super().items()


def test_nested_ids_take_linear_time():
    """The number of accesses to a part does not depend on the number of `$id`s around it."""
    schema = Counted({"type": "integer"})
    for _ in range(MAX_NESTING - 1):
        schema = Counted({"$id": "a", "items": schema})
    Counted.looks = 0

    check_schema(schema, PLACE)

    assert Counted.looks <= 10 * MAX_NESTING
