"""Reduces schemas that need not be enforced completely, step by step, for engines that refuse them.

A function that is not strict is called with whatever the model writes, so what no grammar can
express is dropped from its schema; it is never a reason to refuse the request.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.constraints.json_schema import (
    LIST_KEYWORDS,
    MAP_KEYWORDS,
    MAX_PARTS,
    SCHEMA_KEYWORDS,
    TYPES,
    check_schema,
)

Schema = Mapping[str, Any]

ANY_OBJECT: Schema = {"type": "object"}

# Keywords that grammars cannot express.
_BEYOND_GRAMMARS = frozenset((
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "uniqueItems", "contains", "minContains",
    "maxContains", "multipleOf",
))  # fmt: skip
_DEFINITIONS = ("$defs", "definitions")
_MAX_DEPTH = 24
_MAX_OPTIONAL = 500  # properties of one object: the time to compile grows with the square
_MAX_LENGTH = 1000  # of strings and arrays: a grammar may repeat its states so many times
_MAX_NUMBER = 10**15
# Keyword -> the type that it says something about
_TYPE_OF_KEYWORD = {
    **dict.fromkeys(("properties", "required", "additionalProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("pattern", "format", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "number"),
}
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float),
    "object": (dict,), "array": (list,), "null": (type(None),),
}  # fmt: skip


def relaxed(schema: Any) -> Any:
    """The schema without keywords that grammars cannot express."""
    if isinstance(schema, list):
        return [relaxed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    node = {key: _relaxed_member(key, value) for key, value in schema.items() if _kept(key, value)}
    if "oneOf" in node and "anyOf" not in node:
        node["anyOf"] = node.pop("oneOf")  # without the rule that only one may match
    return node


def _kept(key: str, value: Any) -> bool:
    return key not in _BEYOND_GRAMMARS or value is None


def _relaxed_member(key: str, value: Any) -> Any:
    """A keyword's value. The names in a map of schemas are not keywords."""
    if key in MAP_KEYWORDS and isinstance(value, Mapping):
        return {name: relaxed(each) for name, each in value.items()}
    return relaxed(value) if key in SCHEMA_KEYWORDS or key in LIST_KEYWORDS else value


def structure(schema: Any) -> Schema:
    """The types of the values and their bounds, without rules for texts: what every engine can
    enforce. Takes any JSON, so what is not a schema says nothing, and of a schema that would become
    too large only its type is left.
    """
    try:
        return _Structure(schema).whole()
    except _TooLarge:
        return type_alone(schema)


def type_alone(schema: Schema) -> Schema:
    """The type of the whole value, if the schema names one."""
    kinds = _named_kinds(schema)
    return {"type": kinds[0]} if len(kinds) == 1 else {}


# Each result is looser than the one before. Functions begin with the second.
REDUCTIONS: tuple[Callable[[Any], Any], ...] = (
    lambda schema: schema,
    relaxed,
    structure,
    type_alone,
)


def reduced_arguments(schema: Schema, step: int) -> tuple[Schema, int]:
    """The arguments' schema of a function that is not strict, after the first reduction from `step`
    on that is a valid schema, and the number of its parts.
    """
    whole = _of_object(schema)
    for reduce in REDUCTIONS[step:-1] if whole is not None else ():
        reduced = reduce(whole)
        with suppress(InvalidRequest):
            return reduced, check_schema(reduced, "")
    return ANY_OBJECT, 1


def _of_object(schema: Schema) -> Schema | None:
    """The schema of the arguments, which are an object; None if it is about other values."""
    kind = schema.get("type")
    if kind == "object" or (kind is None and "$ref" in schema):
        return schema
    if kind is None or (isinstance(kind, list) and "object" in kind):
        return {**schema, "type": "object"}
    return None


class _TooLarge(Exception):
    """A short schema can repeat the parts of its `allOf` without end."""


class _Structure:
    """Reduces one document; references in it keep their target."""

    def __init__(self, root: Any) -> None:
        self._root = root if isinstance(root, Mapping) else {}
        self._left = MAX_PARTS
        self._leading: set[str] = set()  # references that lead to a schema

    def whole(self) -> Schema:
        reduced = dict(self.of(self._root))
        for key in _DEFINITIONS:
            named = self._root.get(key)
            if isinstance(named, Mapping):
                reduced[key] = {name: self.of(each) for name, each in named.items()}
        return reduced

    def of(self, node: Any, depth: int = 0) -> Schema:
        """The structure of one schema."""
        self._spend(1)
        if not isinstance(node, Mapping) or depth > _MAX_DEPTH:
            return {}
        if "$ref" in node:
            return {"$ref": node["$ref"]} if self._leads_to_schema(node) else {}
        node = self._merged(node)
        if values := _values(node):
            return {"enum": values}
        kinds = _kinds(node)
        if not kinds:
            return self._alternatives(node, depth)
        parts = [self._typed(kind, node, depth) for kind in kinds]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    def _alternatives(self, node: Schema, depth: int) -> Schema:
        for key in ("anyOf", "oneOf"):
            alternatives = node.get(key)
            if isinstance(alternatives, list) and alternatives:
                parts = [self.of(each, depth + 1) for each in alternatives if each is not False]
                return {"anyOf": parts} if parts and all(parts) else {}
        return {}

    def _typed(self, kind: str, node: Schema, depth: int) -> Schema:
        members: dict[str, Callable[[], Schema]] = {
            "object": partial(self._object, node, depth),
            "array": partial(self._array, node, depth),
            "string": lambda: _bounds(node, "minLength", "maxLength", _count),
            "integer": lambda: _bounds(node, "minimum", "maximum", _whole),
            "number": lambda: _bounds(node, "minimum", "maximum", _number),
        }
        return {"type": kind, **(members[kind]() if kind in members else {})}

    def _object(self, node: Schema, depth: int) -> Schema:
        given = node.get("properties")
        described = given if isinstance(given, Mapping) else {}
        required = [name for name in _list(node.get("required")) if isinstance(name, str)]
        needed = [name for name in dict.fromkeys(required) if described.get(name) is not False]
        properties = {
            name: self.of(each, depth + 1) for name, each in described.items() if each is not False
        }
        properties |= {name: {} for name in needed if name not in properties}
        if len(properties) - len(needed) > _MAX_OPTIONAL:
            return {}
        members = {"properties": properties, "required": needed} if properties else {}
        return {**members, **self._others(node, depth)}

    def _others(self, node: Schema, depth: int) -> Schema:
        """Whether other properties are possible. Any that nothing allows make grammars large."""
        if "patternProperties" in node:
            return {"additionalProperties": True}
        others = node.get("additionalProperties")
        if isinstance(others, Mapping):
            return {"additionalProperties": self.of(others, depth + 1)}
        return {"additionalProperties": others} if isinstance(others, bool) else {}

    def _array(self, node: Schema, depth: int) -> Schema:
        bounds = _bounds(node, "minItems", "maxItems", _count)
        items = node.get("items")
        if isinstance(items, Mapping) and "prefixItems" not in node:
            return {"items": self.of(items, depth + 1), **bounds}
        return {"items": {}, **bounds}

    def _leads_to_schema(self, node: Schema) -> bool:
        """Whether the reference names a definition, or the whole document, and not only itself."""
        passed: set[str] = set()
        while "$ref" in node:
            reference = node["$ref"]
            if not isinstance(reference, str) or reference in passed:
                return False
            if reference in self._leading:
                break
            self._spend(1)
            passed.add(reference)
            target = self._root if reference == "#" else _definition(reference, self._root)
            if not isinstance(target, Mapping):
                return False
            node = target
        self._leading |= passed
        return True

    def _merged(self, node: Schema) -> Schema:
        """The node with what the parts of its `allOf` say, each keyword once."""
        if not (parts := _list(node.get("allOf"))):
            return node
        sources = [node, *(self._part(each) for each in parts)]
        self._spend(sum(map(_members, sources)))
        whole: dict[str, Any] = {}
        properties: dict[str, Any] = {}
        for each in reversed(sources):  # the earlier ones win
            whole |= each
            properties |= _mapping(each.get("properties"))
        required = [name for each in sources for name in _list(each.get("required"))]
        given = {"properties": properties, "required": required}
        return {**whole, **{key: value for key, value in given.items() if key in whole}}

    def _part(self, part: Any) -> Schema:
        reference = part.get("$ref") if isinstance(part, Mapping) else None
        return _mapping(_definition(reference, self._root) if isinstance(reference, str) else part)

    def _spend(self, parts: int) -> None:
        self._left -= parts
        if self._left < 0:
            raise _TooLarge


def _members(node: Schema) -> int:
    """The work to merge the node."""
    members = (_mapping(node.get("properties")), _list(node.get("required")))
    return 1 + len(node) + sum(map(len, members))


def _mapping(value: Any) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _definition(reference: str, root: Schema) -> Any:
    steps = reference.split("/")
    if len(steps) != 3 or steps[0] != "#" or steps[1] not in _DEFINITIONS:
        return None
    if set(steps[2]) & set("~%"):  # engines decode such names differently
        return None
    named = root.get(steps[1])
    return named.get(steps[2]) if isinstance(named, Mapping) else None


def _values(node: Schema) -> list[Any]:
    """The values of `enum` or `const` that the type allows."""
    values = _list(node.get("enum", [node["const"]] if "const" in node else None))
    kinds = _named_kinds(node)
    return [each for each in values if not kinds or any(_is(each, kind) for kind in kinds)]


def _kinds(node: Schema) -> list[str]:
    """The types that the schema names, or that its keywords are about."""
    if kinds := _named_kinds(node):
        return kinds
    return list(dict.fromkeys(_TYPE_OF_KEYWORD[key] for key in node if key in _TYPE_OF_KEYWORD))


def _named_kinds(node: Schema) -> list[str]:
    named = node.get("type")
    kinds: Iterable[Any] = named if isinstance(named, list) else [named]
    return [each for each in dict.fromkeys(map(str, kinds)) if each in TYPES]


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _PYTHON_TYPES[kind])


def _bounds(node: Schema, least: str, most: str, read: Callable[[Any], Any]) -> Schema:
    """The bounds that are possible; neither if no value lies between them."""
    values = {key: read(node.get(key)) for key in (least, most)}
    known = {key: value for key, value in values.items() if value is not None}
    return known if len(known) < 2 or known[least] <= known[most] else {}


def _count(value: Any) -> int | None:
    number = _whole(value)
    return number if number is not None and 0 <= number <= _MAX_LENGTH else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= _MAX_NUMBER else None  # also not of NaN


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
