"""Whether a JSON schema can be held to at all: its shape, its references, its size, each failing
part named by its place. What an engine's grammar can take of it is for the engine to say.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from openai_frontend.errors import InvalidRequest

MAX_PROPERTIES = 5000  # in the whole schema: OpenAI's number; compiling takes their square in time
MAX_NESTING = 48  # objects and arrays within one another, in the schema's own JSON
MAX_PARTS = 16_384  # schemas within schemas, of one request: 40 ms of the event loop

Schema = Mapping[str, Any]

_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_ONE = frozenset((
    "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems",
    "items", "contains", "propertyNames", "not", "if", "then", "else", "contentSchema",
))  # fmt: skip
_LISTS = frozenset(("prefixItems", "allOf", "anyOf", "oneOf"))
_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_PLACE = re.compile(r"[0-9]{1,9}")  # in an array; Python reads no number of 5,000 digits
_ELSEWHERE = ("$dynamicRef", "$recursiveRef")
# What no grammar holds an answer to. Where a request does not insist (a function that is not
# strict), it is left out.
_BEYOND_GRAMMARS = frozenset((
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "uniqueItems", "contains", "minContains",
    "maxContains", "multipleOf",
))  # fmt: skip


class _Place(NamedTuple):
    """Where in the request a part of a schema stands. Spelled only where it is told: of thousands
    of parts under one long name, each place would hold that name.
    """

    within: "_Place | str"
    step: str

    def __str__(self) -> str:
        place: _Place | str = self
        steps = []
        while isinstance(place, _Place):
            steps.append(place.step)
            place = place.within
        return "".join([place, *reversed(steps)])


def check_schema(schema: Any, place: str) -> int:
    """How many parts the schema has. Raises for the first that cannot be held to, by its place."""
    nodes = list(_nodes(schema, place))
    for where, node in nodes:
        _check_node(node, where)
    properties = sum(len(node.get("properties") or ()) for _, node in nodes)
    if properties > MAX_PROPERTIES:
        _refuse(place, f"at most {MAX_PROPERTIES} properties, not {properties}")
    _check_references(schema, nodes)
    return len(nodes)


def relaxed(schema: Any) -> Any:
    """The schema without what no grammar can hold an answer to."""
    if isinstance(schema, list):
        return [relaxed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    node = {key: _relaxed_member(key, value) for key, value in schema.items() if _kept(key, value)}
    if "oneOf" in node and "anyOf" not in node:
        node["anyOf"] = node.pop("oneOf")  # that no other alternative matches is left out
    return node


def _kept(key: str, value: Any) -> bool:
    return key not in _BEYOND_GRAMMARS or value is None


def _relaxed_member(key: str, value: Any) -> Any:
    """What stands under a keyword; the names of a map of schemas are no keywords."""
    if key in _MAPS and isinstance(value, Mapping):
        return {name: relaxed(each) for name, each in value.items()}
    return relaxed(value) if key in _ONE or key in _LISTS else value


def references(schema: Any) -> Iterator[str]:
    """Every `$ref` in the schema."""
    for _, node in _nodes(schema, ""):
        if "$ref" in node:
            yield node["$ref"]


def _nodes(schema: Any, place: str) -> Iterator[tuple[_Place, Schema]]:
    """Every schema within the schema by its place, itself first; those that are a boolean have
    nothing to look at.
    """
    waiting: list[tuple[_Place, Any, int]] = [(_Place(place, ""), schema, 1)]
    seen = 0
    while waiting:
        where, node, depth = waiting.pop()
        seen += 1
        if depth > MAX_NESTING:
            _refuse(place, f"it is nested more than {MAX_NESTING} levels deep")
        if seen > MAX_PARTS:
            _refuse(place, f"at most {MAX_PARTS} parts")
        if isinstance(node, bool):
            continue
        if not isinstance(node, Mapping):
            _refuse(where, "a schema is an object or a boolean")
        yield where, node
        waiting += [
            (_Place(where, step), each, depth + more) for step, each, more in _parts(node, where)
        ]


def _parts(node: Schema, where: _Place) -> Iterator[tuple[str, Any, int]]:
    """The schemas in it, by the step that leads there and the levels that it crosses."""
    for key, value in node.items():
        if key in _MAPS:
            if not isinstance(value, Mapping):
                _refuse(_Place(where, f".{key}"), "expected an object")
            yield from ((f".{key}.{name}", each, 2) for name, each in value.items())
        elif key in _LISTS:
            if not isinstance(value, list) or not value:
                _refuse(_Place(where, f".{key}"), "expected an array with at least one schema")
            yield from ((f".{key}[{i}]", each, 2) for i, each in enumerate(value))
        elif key in _ONE and isinstance(value, list):  # the older form of prefixItems
            yield from ((f".{key}[{i}]", each, 2) for i, each in enumerate(value))
        elif key in _ONE:
            yield f".{key}", value, 1


def _check_node(node: Schema, where: _Place) -> None:
    types = node.get("type", [])
    for kind in types if isinstance(types, list) else [types]:
        if not isinstance(kind, str) or kind not in _TYPES:
            _refuse(_Place(where, ".type"), f"there is no type {str(kind)[:64]!r}")
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        _refuse(_Place(where, ".required"), "expected an array of names")
    if "enum" in node and (not isinstance(node["enum"], list) or not node["enum"]):
        _refuse(_Place(where, ".enum"), "expected an array with at least one value")
    for key in _ELSEWHERE:
        if key in node:
            _refuse(_Place(where, f".{key}"), "only '$ref' can point to another schema")


def _check_references(schema: Any, nodes: Sequence[tuple[_Place, Schema]]) -> None:
    followed: set[str] = set()
    referring = _around_references(nodes)
    for where, node in nodes:
        if "$ref" in node:
            _follow(schema, node, _Place(where, ".$ref"), followed)
        if node is not schema and "$id" in node and id(where) in referring:
            _refuse(
                _Place(where, ".$id"),
                "references start from the whole schema, not from a part of it",
            )


def _around_references(nodes: Sequence[tuple[_Place, Schema]]) -> set[int]:
    """The ids of the places of all parts that have a `$ref` in them, each found once."""
    found: set[int] = set()
    for where, node in nodes:
        place: _Place | str = where if "$ref" in node else ""
        while isinstance(place, _Place) and id(place) not in found:
            found.add(id(place))
            place = place.within
    return found


def _follow(schema: Any, node: Schema, where: _Place, followed: set[str]) -> None:
    """References that lead to one another, and to nothing else, match no value at all. What was
    `followed` to its end leads to a schema.
    """
    passed: set[str] = set()
    target: Any = node
    while isinstance(target, Mapping) and "$ref" in target:
        reference = target["$ref"]
        if not isinstance(reference, str) or not reference.startswith("#"):
            _refuse(where, "a schema can only refer to parts of itself, by '#/...'")
        if reference in passed:
            _refuse(where, "the reference leads to itself alone")
        if reference in followed:
            break
        passed.add(reference)
        target = _resolved(schema, reference, where)
    followed |= passed


def _resolved(schema: Any, reference: str, where: _Place) -> Any:
    found = schema
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and _PLACE.fullmatch(name) and int(name) < len(found):
            found = found[int(name)]
        else:
            _refuse(where, f"there is no {reference[:128]!r}")
    if not isinstance(found, (Mapping, bool)) or (len(reference) > 1 and reference[1] != "/"):
        _refuse(where, f"{reference[:128]!r} is no schema")
    return found


def _refuse(where: _Place | str, reason: str) -> NoReturn:
    place = str(where)
    place = place if len(place) <= 256 else f"{place[:256]}..."
    raise InvalidRequest(f"Invalid schema for '{place}': {reason}.", param=place)
