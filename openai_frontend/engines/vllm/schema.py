"""JSON schemas as xgrammar holds an answer to them.

xgrammar takes schemas that it enforces in part only: keywords beside `anyOf`, or an array's values
where nothing is said of them. Here a schema is spelled so that nothing of it is passed over, or it
is said what cannot be.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from openai_frontend.engines.vllm.patterns import MAX_COUNT, counts_too_far, spelled_in_json

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
    "nullable", "minContains", "maxContains",
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
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
    "contains",
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


class Beyond(ValueError):
    """The schema says what xgrammar would pass over."""


def held(schema: Any) -> Any:
    """The schema as xgrammar enforces all of it. Raises Beyond. Nesting is bounded before."""
    if not isinstance(schema, Mapping):
        return schema
    _check(schema)
    node = {key: _member(key, value) for key, value in schema.items()}
    if node.get("format") not in _FORMATS:
        node.pop("format", None)  # others are an annotation
    combinators = [key for key in _COMBINATORS if key in node]
    if combinators:
        return _without_one_of(_alone(node, combinators))
    if "enum" in node:
        return _enumerated(node)
    if "const" in node:
        return node
    _say_types(node)
    types = node.get("type", ())
    types = types if isinstance(types, list) else [types]
    if "object" in types:
        _say_required(node)
    if "array" in types:
        _say_items(node)
    if "pattern" in node:
        node["pattern"] = spelled_in_json(node["pattern"])
    return node


def _member(key: str, value: Any) -> Any:
    if key in _MAPS and isinstance(value, Mapping):
        return {name: held(each) for name, each in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [held(each) for each in value]
    return held(value) if key in _ONE else value


def _check(node: Mapping[str, Any]) -> None:
    for what in _passed_over(node):
        raise Beyond(f"{what} cannot be enforced")


def _passed_over(node: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"'{key}'" for key in _NEVER if key in node)
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
    if counts_too_far(str(node.get("pattern", ""))):
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
        raise Beyond(f"'{combinators[0]}' together with '{combinators[1]}' cannot be enforced")
    (key,) = combinators
    if beside == {"type"} and key != "$ref":
        kind = node.pop("type")
        node[key] = [_typed(each, kind) for each in node[key]]
    elif beside:
        raise Beyond(f"'{key}' together with '{min(beside)}' cannot be enforced")
    return node


def _without_one_of(node: dict[str, Any]) -> dict[str, Any]:
    """Alternatives that exclude one another are beyond a grammar: xgrammar reads `anyOf`, and
    writes a warning for each.
    """
    if "oneOf" in node:
        node["anyOf"] = node.pop("oneOf")
    return node


def _typed(schema: Any, kind: Any) -> Any:
    if schema is True:
        return {"type": kind}
    if not isinstance(schema, dict) or schema.get("type") == kind:
        return schema
    if "type" in schema or schema.keys() & {*_COMBINATORS, "const", "enum"}:
        raise Beyond("a type beside alternatives that have their own cannot be enforced")
    return {"type": kind, **schema}


def _enumerated(node: dict[str, Any]) -> dict[str, Any]:
    """xgrammar reads the values alone, so those of other types go."""
    types = node.pop("type", None)
    if node.keys() - _ANNOTATIONS - {"enum"}:
        raise Beyond("'enum' together with other rules cannot be enforced")
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
        raise Beyond("'required' together with 'patternProperties' cannot be enforced")
    if unsaid:
        node["properties"] = {**properties, **dict.fromkeys(unsaid, others)}
    optional = len(properties) - (len(node.get("required") or ()) - len(unsaid))
    if optional > MAX_OPTIONAL:
        raise ValueError(f"at most {MAX_OPTIONAL} properties of one object may be optional")


def _say_items(node: dict[str, Any]) -> None:
    """xgrammar closes an array whose other items are not described."""
    known = node.get("prefixItems") or ()
    if "items" not in node and (not known or node.get("minItems", 0) > len(known)):
        node["items"] = {}
