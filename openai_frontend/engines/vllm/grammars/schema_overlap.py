"""Decides whether JSON schemas are disjoint, by their types, values, bounds and required
properties. Answers no if it cannot tell.
"""

from collections.abc import Mapping
from typing import Any

_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_NUMBERS = frozenset(("number", "integer"))
_DEPTH = 8  # depth of references and properties to follow
_COMPARED = 400  # schemas, which take up to 8 s
# Types, with the keywords for their lower and upper bound
_BOUNDS = (
    (_NUMBERS, "minimum", "maximum"),
    ({"string"}, "minLength", "maxLength"),
    ({"array"}, "minItems", "maxItems"),
    ({"object"}, "minProperties", "maxProperties"),
)


def are_disjoint(schemas: list[Any], root: Any) -> bool:
    """Whether every value matches at most one of the schemas. `root` is the document of their
    references.
    """
    if len(schemas) < 2:
        return True
    found = [_target(each, root) if isinstance(each, Mapping) else each for each in schemas]
    if _have_own_values(found) or _has_discriminator(found):
        return True
    return len(schemas) <= _COMPARED and all(
        _disjoint(one, other, root, _DEPTH)
        for i, one in enumerate(schemas)
        for other in schemas[i + 1 :]
    )


def _have_own_values(schemas: list[Any]) -> bool:
    """Whether each has a few simple values that no other one has."""
    values = [_values(each) for each in schemas if isinstance(each, Mapping)]
    known = [each for each in values if each is not None]
    return len(known) == len(schemas) and len(frozenset().union(*known)) == sum(map(len, known))


def _has_discriminator(schemas: list[Any]) -> bool:
    """Whether all are objects that require a property with values of their own. Comparing each with
    each other one takes 0.1 ms a pair.
    """
    if not all(isinstance(each, Mapping) and _types(each) == {"object"} for each in schemas):
        return False
    required = [frozenset(each.get("required") or ()) for each in schemas]
    return any(
        _have_own_values([_property(name, each) for each in schemas])
        for name in frozenset.intersection(*required)
    )


def _disjoint(one: Any, other: Any, root: Any, depth: int) -> bool:
    if one is False or other is False:
        return True
    if not isinstance(one, Mapping) or not isinstance(other, Mapping) or not depth:
        return False
    if "$ref" in one or "$ref" in other:
        return _disjoint(_target(one, root), _target(other, root), root, depth - 1)
    for schema, beside in ((one, other), (other, one)):
        for key, needed in (("anyOf", all), ("oneOf", all), ("allOf", any)):
            parts = schema.get(key)
            if parts and needed(_disjoint(part, beside, root, depth - 1) for part in parts):
                return True
    return _schemas_differ(one, other, root, depth)


def _target(schema: Mapping[str, Any], root: Any) -> Any:
    """Resolve `$ref`. Keywords next to it only narrow the schema."""
    found = root
    for step in schema["$ref"][1:].split("/")[1:] if "$ref" in schema else ():
        name = step.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found if "$ref" in schema else schema


def _schemas_differ(
    one: Mapping[str, Any], other: Mapping[str, Any], root: Any, depth: int
) -> bool:
    types = _types(one) & _types(other)
    if not types:
        return True
    values, others = _values(one), _values(other)
    if values is not None and others is not None and not values & others:
        return True
    if any(
        types <= kinds and _bounds_disjoint(one, other, low, high) for kinds, low, high in _BOUNDS
    ):
        return True
    return types == {"object"} and _objects_differ(one, other, root, depth)


def _objects_differ(
    one: Mapping[str, Any], other: Mapping[str, Any], root: Any, depth: int
) -> bool:
    needed, others = set(one.get("required") or ()), set(other.get("required") or ())
    if any(_forbidden(name, other) for name in needed) or any(
        _forbidden(name, one) for name in others
    ):
        return True
    return any(
        _disjoint(_property(name, one), _property(name, other), root, depth - 1)
        for name in needed & others
    )


def _property(name: str, schema: Mapping[str, Any]) -> Any:
    return (schema.get("properties") or {}).get(name, True)


def _forbidden(name: str, schema: Mapping[str, Any]) -> bool:
    described = name in (schema.get("properties") or {}) or "patternProperties" in schema
    return not described and schema.get("additionalProperties") is False


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        return frozenset(kind for value in values for kind in _types_of(value))
    if "type" not in schema:
        return _TYPES
    given = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return frozenset(given) | (_NUMBERS if "number" in given else frozenset())


def _types_of(value: Any) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset(("boolean",))
    if isinstance(value, (int, float)):
        return _NUMBERS
    kinds = {str: "string", list: "array", dict: "object", type(None): "null"}
    return frozenset((kinds[type(value)],))


def _values(schema: Mapping[str, Any]) -> frozenset[tuple[bool, Any]] | None:
    """All matching values, if they are few and simple. 1 and 1.0 are equal, 1 and true are not."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is None or any(isinstance(value, (list, dict)) for value in values):
        return None
    return frozenset((isinstance(value, bool), value) for value in values)


def _bounds_disjoint(one: Mapping[str, Any], other: Mapping[str, Any], low: str, high: str) -> bool:
    return any(
        high in below and low in above and below[high] < above[low]
        for below, above in ((one, other), (other, one))
    )
