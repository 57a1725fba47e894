"""Validates JSON schemas before they reach an engine: shape, references and size.

Errors name the path of the invalid part. The engine decides which keywords its grammars support.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import orjson

from openai_frontend.errors import InvalidRequest

MAX_PROPERTIES = 5000  # in the whole schema: OpenAI's limit; compiling takes quadratic time
MAX_NESTING = 48  # objects and arrays within one another, in the schema's own JSON
MAX_PARTS = 16_384  # nested schemas in one request: 40 ms of the event loop

Schema = Mapping[str, Any]

MAP_KEYWORDS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
SCHEMA_KEYWORDS = frozenset((
    "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems",
    "items", "contains", "propertyNames", "not", "if", "then", "else", "contentSchema",
))  # fmt: skip
LIST_KEYWORDS = frozenset(("prefixItems", "allOf", "anyOf", "oneOf"))
_SCHEMAS_WITHIN = MAP_KEYWORDS | SCHEMA_KEYWORDS | LIST_KEYWORDS
TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_PLACE = re.compile(r"[0-9]{1,9}")  # array index; Python does not parse 5,000 digits
_LENGTHS = ("minLength", "maxLength")
_ELSEWHERE = ("$dynamicRef", "$recursiveRef")


class _SchemaPath(NamedTuple):
    """The path of a part of a schema. Spelled only for errors: thousands of parts below one long
    name would each repeat that name.
    """

    within: "_SchemaPath | str"
    step: str

    def __str__(self) -> str:
        place: _SchemaPath | str = self
        steps = []
        while isinstance(place, _SchemaPath):
            steps.append(place.step)
            place = place.within
        return "".join([place, *reversed(steps)])


def check_schema(schema: Any, place: str) -> int:
    """The number of parts. Raises InvalidRequest, with the path, for the first invalid part."""
    nodes = list(_nodes(schema, place))
    for where, node in nodes:
        _check_node(node, where)
    properties = sum(len(node.get("properties") or ()) for _, node in nodes)
    if properties > MAX_PROPERTIES:
        _refuse(place, f"it has {properties} properties; the limit is {MAX_PROPERTIES}")
    _check_writable(schema, nodes)
    _check_references(schema, nodes)
    return len(nodes)


def references(schema: Any) -> Iterator[str]:
    """Every `$ref` in the schema."""
    for _, node in _nodes(schema, ""):
        if "$ref" in node:
            yield node["$ref"]


def _nodes(schema: Any, place: str) -> Iterator[tuple[_SchemaPath, Schema]]:
    """Every schema within the schema with its path, itself first, without booleans."""
    waiting: list[tuple[_SchemaPath, Any, int]] = [(_SchemaPath(place, ""), schema, 1)]
    seen = 0
    while waiting:
        where, node, depth = waiting.pop()
        seen += 1
        if depth > MAX_NESTING:
            _refuse(place, f"it is nested more than {MAX_NESTING} levels deep")
        if seen > MAX_PARTS:
            _refuse(place, f"it has more than {MAX_PARTS} parts")
        if isinstance(node, bool):
            continue
        if not isinstance(node, Mapping):
            _refuse(where, "a schema must be an object or a boolean")
        yield where, node
        waiting += [
            (_SchemaPath(where, step), each, depth + more)
            for step, each, more in _parts(node, where)
        ]


def _parts(node: Schema, where: _SchemaPath) -> Iterator[tuple[str, Any, int]]:
    """Directly nested schemas: step of the path, schema, levels of nesting."""
    for key, value in node.items():
        if key in MAP_KEYWORDS:
            if not isinstance(value, Mapping):
                _refuse(_SchemaPath(where, f".{key}"), "expected an object")
            yield from ((f".{key}.{name}", each, 2) for name, each in value.items())
        elif key in LIST_KEYWORDS:
            if not isinstance(value, list) or not value:
                _refuse(_SchemaPath(where, f".{key}"), "expected an array with at least one schema")
            yield from ((f".{key}[{i}]", each, 2) for i, each in enumerate(value))
        elif key in SCHEMA_KEYWORDS and isinstance(value, list):  # the older form of prefixItems
            yield from ((f".{key}[{i}]", each, 2) for i, each in enumerate(value))
        elif key in SCHEMA_KEYWORDS:
            yield f".{key}", value, 1


def _check_node(node: Schema, where: _SchemaPath) -> None:
    types = node.get("type")
    if types == []:
        _refuse(_SchemaPath(where, ".type"), "expected at least one type")
    for kind in types if isinstance(types, list) else [types] if "type" in node else ():
        if not isinstance(kind, str) or kind not in TYPES:
            _refuse(_SchemaPath(where, ".type"), f"unknown type {str(kind)[:64]!r}")
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        _refuse(_SchemaPath(where, ".required"), "expected an array of names")
    if "enum" in node and (not isinstance(node["enum"], list) or not node["enum"]):
        _refuse(_SchemaPath(where, ".enum"), "expected an array with at least one value")
    for key in _LENGTHS:
        if key in node and not _is_count(node[key]):
            _refuse(_SchemaPath(where, f".{key}"), "expected an integer >= 0")
    for key in _ELSEWHERE:
        if key in node:
            _refuse(_SchemaPath(where, f".{key}"), "use '$ref' to refer to another schema")


def _is_count(value: Any) -> bool:
    """JSON Schema's non-negative integer, which may be written as 2.0."""
    if isinstance(value, float):
        return value >= 0 and value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_writable(schema: Any, nodes: Sequence[tuple[_SchemaPath, Schema]]) -> None:
    """The engines' JSON has the limits of orjson."""
    if _is_writable(schema):
        return
    for where, node in nodes:
        for key, value in node.items():
            if key not in _SCHEMAS_WITHIN and not _is_writable(value):
                reason = "an integer of more than 64 bits, or too many levels of nesting"
                _refuse(_SchemaPath(where, f".{key}"), f"{reason}, cannot be enforced")


def _is_writable(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


def _check_references(schema: Any, nodes: Sequence[tuple[_SchemaPath, Schema]]) -> None:
    followed: set[str] = set()
    referring = _around_references(nodes)
    for where, node in nodes:
        if "$ref" in node:
            _follow(schema, node, _SchemaPath(where, ".$ref"), followed)
        if node is not schema and "$id" in node and id(where) in referring:
            _refuse(
                _SchemaPath(where, ".$id"),
                "'$id' in a part of the schema cannot be the base of references",
            )


def _around_references(nodes: Sequence[tuple[_SchemaPath, Schema]]) -> set[int]:
    """The ids of the paths of all parts that contain a `$ref`."""
    ids: set[int] = set()
    for where, node in nodes:
        place: _SchemaPath | str = where if "$ref" in node else ""
        while isinstance(place, _SchemaPath) and id(place) not in ids:
            ids.add(id(place))
            place = place.within
    return ids


def _follow(schema: Any, node: Schema, where: _SchemaPath, followed: set[str]) -> None:
    """Reject references that lead only to each other, since they match no value. Those in
    `followed` are known to lead to a schema.
    """
    passed: set[str] = set()
    target: Any = node
    while isinstance(target, Mapping) and "$ref" in target:
        reference = target["$ref"]
        if not isinstance(reference, str) or not reference.startswith("#"):
            _refuse(where, "a reference must point into the same schema ('#/...')")
        if reference in passed:
            _refuse(where, "the reference only leads back to itself")
        if reference in followed:
            break
        passed.add(reference)
        target = _resolved(schema, reference, where)
    followed |= passed


def _resolved(schema: Any, reference: str, where: _SchemaPath) -> Any:
    part = schema
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping) and name in part:
            part = part[name]
        elif isinstance(part, list) and _PLACE.fullmatch(name) and int(name) < len(part):
            part = part[int(name)]
        else:
            _refuse(where, f"{reference[:128]!r} does not exist")
    if not isinstance(part, (Mapping, bool)) or (len(reference) > 1 and reference[1] != "/"):
        _refuse(where, f"{reference[:128]!r} is not a schema")
    return part


def _refuse(where: _SchemaPath | str, reason: str) -> NoReturn:
    place = str(where)
    place = place if len(place) <= 256 else f"{place[:256]}..."
    raise InvalidRequest(f"Invalid schema for '{place}': {reason}.", param=place)
