"""JSON schemas as xgrammar holds an answer to them.

xgrammar takes schemas that it enforces in part only: keywords beside `anyOf`, or an array's values
where nothing is said of them. Here a schema is spelled so that nothing of it is passed over, or it
is said what cannot be.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from openai_frontend.engines.vllm.patterns import (
    FORMATS,
    MAX_COUNT,
    escape_for_json,
    repeat_bound_exceeded,
)
from openai_frontend.engines.vllm.schema_overlap import are_disjoint

# Optional properties of one object that xgrammar compiles: 1,000 take 0.3 s, and their square in
# time; all together as many as OpenAI takes.
MAX_OPTIONAL = 1000

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ONE = ("additionalProperties", "items", "propertyNames")
_LISTS = ("prefixItems", "allOf", "anyOf", "oneOf")
_COMBINATORS = ("$ref", "allOf", "anyOf", "oneOf")
# What says nothing of a value.
_ANNOTATIONS = frozenset((
    "$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions", "title", "description",
    "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "contentEncoding",
    "contentMediaType", "contentSchema", "discriminator", "xml", "externalDocs", "strict",
    "nullable", "minContains", "maxContains", "if", "then", "else",
))  # fmt: skip
# The types that a keyword speaks of, where a schema says no type.
_SPEAKS_OF = {
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties", "required",
                     "propertyNames", "minProperties", "maxProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("minLength", "maxLength", "pattern"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "number"),
}  # fmt: skip
_NEVER = (
    "not", "dependentRequired", "dependentSchemas", "dependencies", "contains",
)  # fmt: skip
_FORMATS = frozenset((
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri",
    "uri-reference", "uri-template", "json-pointer", "relative-json-pointer",
))  # fmt: skip
_LENGTHS = ("minLength", "maxLength")
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float),
    "object": (dict,), "array": (list,), "null": (type(None),),
}  # fmt: skip


class Unenforceable(ValueError):
    """The schema says what xgrammar would pass over."""


def held(schema: Any) -> Any:
    """Return the schema in a form that xgrammar enforces completely.

    Raises Unenforceable, or ValueError if no value can match. Both messages begin with the path
    within the schema. Callers limit the nesting depth first.
    """
    return _held(schema, schema, "")


def _held(schema: Any, root: Any, at: str) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    with _placed(at):
        _check(schema, root)
    node = {key: _member(key, value, root, f"{at}.{key}") for key, value in schema.items()}
    with _placed(at):
        return _spelled(node)


@contextmanager
def _placed(at: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise type(error)(f"{at[1:]}: {error}" if at else str(error)) from error


def _spelled(node: dict[str, Any]) -> dict[str, Any]:
    if node.get("format") not in _FORMATS:
        node.pop("format", None)  # others are an annotation
    combinators = [key for key in _COMBINATORS if key in node]
    if combinators:
        return _alone(node, combinators)
    if "enum" in node:
        return _enumerated(node)
    if "const" in node:
        return node
    _say_types(node)
    types = node.get("type", ())
    types = types if isinstance(types, list) else [types]
    if "object" in types:
        _say_required(node)
        _say_others(node)
        if "patternProperties" in node:
            names = node["patternProperties"]
            node["patternProperties"] = {escape_for_json(key): names[key] for key in names}
    if "array" in types:
        _say_items(node)
    if "pattern" in node:
        node["pattern"] = escape_for_json(node["pattern"])
    elif node.get("format") in FORMATS:
        node["pattern"] = escape_for_json(FORMATS[node.pop("format")])
    return node


def _member(key: str, value: Any, root: Any, at: str) -> Any:
    if key in _MAPS and isinstance(value, Mapping):
        return {name: _held(each, root, f"{at}.{name}") for name, each in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [_held(each, root, f"{at}[{i}]") for i, each in enumerate(value)]
    return _held(value, root, at) if key in _ONE else value


def _check(node: Mapping[str, Any], root: Any) -> None:
    for what in _passed_over(node):
        raise Unenforceable(f"{what} cannot be enforced")
    if "oneOf" in node and not are_disjoint(_typed_alternatives(node), root):
        raise Unenforceable("'oneOf' cannot be enforced: a value may match two of its alternatives")


def _typed_alternatives(node: Mapping[str, Any]) -> list[Any]:
    """Those of `oneOf`, with the type that stands beside it."""
    if "type" not in node:
        return list(node["oneOf"])
    return [
        {"type": node["type"], **each} if isinstance(each, Mapping) else each
        for each in node["oneOf"]
    ]


def _passed_over(node: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"'{key}'" for key in _NEVER if key in node)
    if "if" in node and node.keys() & {"then", "else"}:  # by themselves they say nothing
        yield "'if'"
    yield from (
        f"'{key}'"
        for key in ("unevaluatedProperties", "unevaluatedItems")
        if node.get(key, True) is not True
    )
    if node.get("uniqueItems"):
        yield "'uniqueItems'"
    if "multipleOf" in node:
        yield "'multipleOf'"
    if isinstance(node.get("items"), list):
        yield "an array of 'items'"
    if isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1:
        yield "'allOf' of several schemas"
    text = [key for key in ("pattern", "format") if key in node]
    if "format" in text and node["format"] not in _FORMATS:
        text.remove("format")
    if repeat_bound_exceeded(
        " ".join([str(node.get("pattern")), *(node.get("patternProperties") or ())])
    ):
        yield f"a 'pattern' that counts beyond {MAX_COUNT}"
    if len(text) > 1 or (text and any(key in node for key in _LENGTHS)):
        yield f"'{text[0]}' together with other rules for the same text"
    yield from _passed_over_of_objects(node)


def _passed_over_of_objects(node: Mapping[str, Any]) -> Iterator[str]:
    patterns = node.get("patternProperties") or {}
    if patterns and (len(patterns) > 1 or node.get("properties")):
        yield "'patternProperties' together with other properties"
    names = node.get("propertyNames")
    if names is not None and (patterns or node.get("properties")):
        yield "'propertyNames' together with properties"
    if node.get("minProperties", 0) > len(node.get("required") or ()) and (
        node.get("additionalProperties", True) is not False
    ):
        yield "'minProperties' of properties without a name"


def _alone(node: dict[str, Any], combinators: list[str]) -> dict[str, Any]:
    """xgrammar reads a combinator and nothing beside it; a type may go into the alternatives."""
    beside = node.keys() - _ANNOTATIONS - set(combinators)
    if len(combinators) > 1:
        raise Unenforceable(
            f"'{combinators[0]}' together with '{combinators[1]}' cannot be enforced"
        )
    (key,) = combinators
    if beside == {"type"} and key != "$ref":
        kind = node.pop("type")
        node[key] = [_typed(each, kind) for each in node[key]]
    elif beside:
        raise Unenforceable(f"'{key}' together with '{min(beside)}' cannot be enforced")
    if key in ("anyOf", "oneOf"):
        # of alternatives that exclude one another xgrammar need not know
        node["anyOf"] = _possible(node.pop(key))
    return node


def _possible(alternatives: list[Any]) -> list[Any]:
    """xgrammar refuses one that matches nothing."""
    possible = [each for each in alternatives if each is not False]
    if not possible:
        raise ValueError("none of the alternatives can match")
    return possible


def _typed(schema: Any, kind: Any) -> Any:
    if schema is True:
        return {"type": kind}
    if not isinstance(schema, dict) or schema.get("type") == kind:
        return schema
    if "type" in schema or schema.keys() & {*_COMBINATORS, "const", "enum"}:
        raise Unenforceable("a type beside alternatives that have their own cannot be enforced")
    return {"type": kind, **schema}


def _enumerated(node: dict[str, Any]) -> dict[str, Any]:
    """xgrammar reads the values alone, so those of other types go."""
    types = node.pop("type", None)
    if node.keys() - _ANNOTATIONS - {"enum"}:
        raise Unenforceable("'enum' together with other rules cannot be enforced")
    if types is not None:
        kinds = types if isinstance(types, list) else [types]
        values = [value for value in node["enum"] if any(_is(value, kind) for kind in kinds)]
        if not values:
            raise ValueError("no value of 'enum' is of the 'type'")
        node["enum"] = values
    return node


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _PYTHON_TYPES.get(kind, ()))


def _say_types(node: dict[str, Any]) -> None:
    """xgrammar passes over the keywords of a schema without a type. A value of another type would
    match as well, but need not be allowed.
    """
    if "type" in node:
        return
    types = dict.fromkeys(_SPEAKS_OF[key] for key in node if key in _SPEAKS_OF)
    if "format" in node:
        types["string"] = "string"
    if types:
        node["type"] = next(iter(types)) if len(types) == 1 else list(types)


def _say_required(node: dict[str, Any]) -> None:
    """xgrammar requires properties only where they are described."""
    properties, others = node.get("properties") or {}, node.get("additionalProperties", True)
    unsaid = [name for name in node.get("required") or () if name not in properties]
    if unsaid and others is False:
        raise ValueError(f"{unsaid[0]!r} is required, but cannot be there")
    if unsaid and "patternProperties" in node:
        raise Unenforceable("'required' together with 'patternProperties' cannot be enforced")
    if unsaid:
        node["properties"] = {**properties, **dict.fromkeys(unsaid, others)}
    optional = len(properties) - (len(node.get("required") or ()) - len(unsaid))
    if optional > MAX_OPTIONAL:
        raise ValueError(f"at most {MAX_OPTIONAL} properties of one object may be optional")


def _say_others(node: dict[str, Any]) -> None:
    """An object of which no property is described has any, in a list of types too."""
    if not node.keys() & {"properties", "patternProperties", "propertyNames"}:
        node.setdefault("additionalProperties", True)


def _say_items(node: dict[str, Any]) -> None:
    """xgrammar closes an array whose other items are not described."""
    known = node.get("prefixItems") or ()
    if "items" not in node and (not known or node.get("minItems", 0) > len(known)):
        node["items"] = {}
