"""Whether a JSON schema can be held to at all: its shape, its references, its size, each failing
part named by its place. What an engine's grammar can take of it is for the engine to say.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from openai_frontend.errors import InvalidRequest

MAX_PROPERTIES = 5000  # in the whole schema: OpenAI's number; compiling takes their square in time
MAX_NESTING = 48  # objects and arrays within one another, in the schema's own JSON

Schema = Mapping[str, Any]

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ONE = (
    "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems",
    "items", "contains", "propertyNames", "not", "if", "then", "else", "contentSchema",
)  # fmt: skip
_LISTS = ("prefixItems", "allOf", "anyOf", "oneOf")
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


def check_schema(schema: Any, place: str) -> None:
    """Raises for the first part of a schema that cannot be held to, by its place."""
    nodes = dict(_nodes(schema, place))
    for where, node in nodes.items():
        if isinstance(node, Mapping):
            _check_node(node, where)
    properties = sum(len(node.get("properties") or ()) for node in nodes.values() if node)
    if properties > MAX_PROPERTIES:
        _refuse(place, f"at most {MAX_PROPERTIES} properties, not {properties}")
    _check_references(schema, nodes)


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
        if isinstance(node, Mapping) and "$ref" in node:
            yield node["$ref"]


def _nodes(schema: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every schema within the schema by its place, itself first."""
    waiting: list[tuple[str, Any, int]] = [(place, schema, 1)]
    while waiting:
        where, node, depth = waiting.pop()
        if depth > MAX_NESTING:
            _refuse(place, f"it is nested more than {MAX_NESTING} levels deep")
        if isinstance(node, bool):
            yield where, None
            continue
        if not isinstance(node, Mapping):
            _refuse(where, "a schema is an object or a boolean")
        yield where, node
        waiting += [(at, each, depth + more) for at, each, more in _parts(node, where)]


def _parts(node: Schema, where: str) -> Iterator[tuple[str, Any, int]]:
    for key in _MAPS:
        if key in node:
            within = node[key]
            if not isinstance(within, Mapping):
                _refuse(f"{where}.{key}", "expected an object")
            yield from ((f"{where}.{key}.{name}", each, 2) for name, each in within.items())
    for key in _ONE:
        if key not in node:
            continue
        if isinstance(node[key], list):  # the older form of prefixItems
            yield from ((f"{where}.{key}[{i}]", each, 2) for i, each in enumerate(node[key]))
        else:
            yield f"{where}.{key}", node[key], 1
    for key in _LISTS:
        if key in node:
            if not isinstance(node[key], list) or not node[key]:
                _refuse(f"{where}.{key}", "expected an array with at least one schema")
            yield from ((f"{where}.{key}[{i}]", each, 2) for i, each in enumerate(node[key]))


def _check_node(node: Schema, where: str) -> None:
    types = node.get("type", [])
    for kind in types if isinstance(types, list) else [types]:
        if not isinstance(kind, str) or kind not in _TYPES:
            _refuse(f"{where}.type", f"there is no type {str(kind)[:64]!r}")
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        _refuse(f"{where}.required", "expected an array of names")
    if "enum" in node and (not isinstance(node["enum"], list) or not node["enum"]):
        _refuse(f"{where}.enum", "expected an array with at least one value")
    for key in _ELSEWHERE:
        if key in node:
            _refuse(f"{where}.{key}", "only '$ref' can point to another schema")


def _check_references(schema: Any, nodes: Mapping[str, Any]) -> None:
    for where, node in nodes.items():
        if not isinstance(node, Mapping):
            continue
        if "$ref" in node:
            _follow(schema, node, f"{where}.$ref")
        if node is not schema and "$id" in node and next(references(node), None) is not None:
            _refuse(f"{where}.$id", "references start from the whole schema, not from a part of it")


def _follow(schema: Any, node: Schema, where: str) -> None:
    """References that lead to one another, and to nothing else, match no value at all."""
    passed: set[str] = set()
    target: Any = node
    while isinstance(target, Mapping) and "$ref" in target:
        reference = target["$ref"]
        if not isinstance(reference, str) or not reference.startswith("#"):
            _refuse(where, "a schema can only refer to parts of itself, by '#/...'")
        if reference in passed:
            _refuse(where, "the reference leads to itself alone")
        passed.add(reference)
        target = _resolved(schema, reference, where)


def _resolved(schema: Any, reference: str, where: str) -> Any:
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


def _refuse(where: str, reason: str) -> NoReturn:
    where = where if len(where) <= 256 else f"{where[:256]}..."
    raise InvalidRequest(f"Invalid schema for '{where}': {reason}.", param=where)
