"""Rewrites JSON schemas so that xgrammar enforces them completely.

xgrammar accepts schemas that it enforces only partly: it ignores keywords next to `anyOf`, or array
items that are not described. Here a schema is rewritten so that nothing is ignored, or refused with
the reason.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from openai_frontend.engines.vllm.grammars.patterns import FORMATS, MAX_COUNT, largest_count
from openai_frontend.engines.vllm.grammars.regex_determinism import is_deterministic
from openai_frontend.engines.vllm.grammars.regex_search import Search, whole_texts
from openai_frontend.engines.vllm.grammars.regex_text import needs_escapes, within_json_for_xgrammar
from openai_frontend.engines.vllm.grammars.regex_tree import Node
from openai_frontend.engines.vllm.grammars.schema_overlap import are_disjoint

# Optional properties of one object: 1,000 take xgrammar 0.3 s, and the time grows with the square.
# OpenAI allows as many in total.
MAX_OPTIONAL = 1000

# Limit of `anyOf` and `oneOf`: 2,000 objects take xgrammar 8 s, and the time grows with the square.
MAX_ALTERNATIVES = 2000

# llguidance counts remainders: 9,973 of them take it 0.1 s, 999,983 take 3 s, 9,999,991 minutes and
# gigabytes.
MAX_DIVISOR_DIGITS = 4
# xgrammar rounds the bounds of numbers to so many decimals, and may find no number between them.
_DECIMALS = 6

Path = tuple[str | int, ...]

DEFINITIONS = ("$defs", "definitions")
MAPS = ("properties", "patternProperties", *DEFINITIONS)
ONE = ("additionalProperties", "items", "propertyNames")
LISTS = ("prefixItems", "allOf", "anyOf", "oneOf")
COMBINATORS = ("$ref", "allOf", "anyOf", "oneOf")
# Keywords that do not constrain values.
ANNOTATIONS = frozenset((
    "$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions", "title", "description",
    "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "contentEncoding",
    "contentMediaType", "contentSchema", "discriminator", "xml", "externalDocs", "strict",
    "nullable", "minContains", "maxContains", "if", "then", "else",
))  # fmt: skip
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# Keyword -> the type it applies to, for schemas without a type.
_TYPE_OF_KEYWORD = {
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties", "required",
                     "propertyNames", "minProperties", "maxProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("minLength", "maxLength", "pattern"), "string"),
    **dict.fromkeys((*BOUNDS, "multipleOf"), "number"),
}  # fmt: skip
_UNSUPPORTED = (
    "not", "dependentRequired", "dependentSchemas", "dependencies", "contains",
)  # fmt: skip
KNOWN_FORMATS = frozenset((
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri",
    "uri-reference", "uri-template", "json-pointer", "relative-json-pointer",
))  # fmt: skip
_LENGTHS = ("minLength", "maxLength")
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float),
    "object": (dict,), "array": (list,), "null": (type(None),),
}  # fmt: skip


# Types of the values of keywords
_VALUES: Sequence[tuple[tuple[type, ...], tuple[str, ...]]] = (
    ((int, float), (
        *BOUNDS, "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "minProperties",
        "maxProperties",
    )),
    ((str,), ("pattern", "$ref")),
    ((Mapping,), MAPS),
    ((list,), (*LISTS, "required", "enum")),
    ((Mapping, bool), ONE),
)  # fmt: skip


class InvalidSchema(ValueError):
    """A part of the schema that no grammar can enforce, or that no value matches.

    `path` leads to the part from the root of the schema. Without `keywords`, or reduced to its type
    if it has none of them, the part is enforceable; nothing else in the schema needs to change.
    """

    def __init__(self, reason: str, *keywords: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.keywords = keywords
        self.path: Path = ()

    def __str__(self) -> str:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        place = "".join(steps).removeprefix(".")
        return f"{place}: {self.reason}" if place else self.reason


class Unenforceable(InvalidSchema):
    """xgrammar would ignore something in this part. llguidance may enforce it."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A schema in a form that xgrammar enforces completely, without the keywords that it cannot
    enforce: with `refusals`, it allows more than the schema does.
    """

    schema: Any
    refusals: Sequence[InvalidSchema]


def rewritten(schema: Any) -> Rewritten:
    """Rewrite a schema of the current draft for xgrammar. Callers limit the nesting depth first."""
    rewriter = _Rewriter(schema)
    return Rewritten(rewriter.rewrite(schema, ()), rewriter.refusals)


def enforceable_schema(schema: Any) -> Any:
    """Return the schema in a form that xgrammar enforces completely.

    Raises Unenforceable, or InvalidSchema if llguidance cannot enforce it either.
    """
    found = rewritten(schema)
    for refused in found.refusals:
        if not isinstance(refused, Unenforceable):
            raise refused
    for refused in found.refusals:
        raise refused
    return found.schema


class _Rewriter:
    def __init__(self, root: Any) -> None:
        self._root = root
        self.refusals: list[InvalidSchema] = []

    def rewrite(self, schema: Any, at: Path) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        checked = self._accepted(schema, self._checked, at)
        node = {key: self._rewrite_member(key, value, at) for key, value in checked.items()}
        return self._accepted(node, _rewrite_node, at)

    def _accepted(
        self, node: Mapping[str, Any], step: Callable[[dict[str, Any]], Any], at: Path
    ) -> Any:
        """The result of the step, without the keywords that it refuses."""
        while True:
            try:
                return step(dict(node))
            except InvalidSchema as refused:
                refused.path = at
                self.refusals.append(refused)
                node = _without(node, refused.keywords)

    def _rewrite_member(self, key: str, value: Any, at: Path) -> Any:
        if key in MAPS and isinstance(value, Mapping):
            return {name: self.rewrite(each, (*at, key, name)) for name, each in value.items()}
        if key in LISTS and isinstance(value, list):
            return [self.rewrite(each, (*at, key, i)) for i, each in enumerate(value)]
        return self.rewrite(value, (*at, key)) if key in ONE else value

    def _checked(self, node: dict[str, Any]) -> dict[str, Any]:
        _check_values(node)
        for what, *keywords in _ignored_keywords(node):
            raise Unenforceable(f"{what} cannot be enforced", *keywords)
        if "oneOf" in node and not are_disjoint(typed_alternatives(node), self._root):
            reason = "'oneOf' cannot be enforced: a value may match two alternatives"
            raise Unenforceable(reason, "oneOf")
        return node


def _without(node: Mapping[str, Any], keywords: Collection[str]) -> Mapping[str, Any]:
    """The schema without the keywords; if it has none of them, only its type."""
    kept = node.keys() - keywords
    if len(kept) == len(node):
        kept &= {"type"}
    found = {key: node[key] for key in node if key in kept}
    if "oneOf" in node and "oneOf" not in kept and "anyOf" not in node:
        found["anyOf"] = node["oneOf"]  # without the rule that only one may match
    return found


def _rewrite_node(node: dict[str, Any]) -> dict[str, Any]:
    if node.get("format") not in KNOWN_FORMATS:
        node.pop("format", None)  # unknown formats are annotations
    combinators = [key for key in COMBINATORS if key in node]
    if combinators:
        return _rewrite_combinator(node, combinators)
    if "const" in node and "enum" not in node:
        node["enum"] = [node.pop("const")]
    if "enum" in node:
        return _rewrite_enum(node)
    add_types(node)
    types = node.get("type", ())
    types = types if isinstance(types, list) else [types]
    if "object" in types:
        _describe_required(node)
        _allow_other_properties(node)
        if "patternProperties" in node:
            names = node["patternProperties"]
            node["patternProperties"] = {
                _spelled(key, "patternProperties"): names[key] for key in names
            }
    if "array" in types:
        _allow_other_items(node)
    if "pattern" in node:
        node["pattern"] = _spelled(node["pattern"], "pattern")
    elif node.get("format") in FORMATS:
        (tree,) = whole_texts(FORMATS[node.pop("format")])
        node["pattern"] = within_json_for_xgrammar(tree)
    return node


def _spelled(pattern: Any, keyword: str) -> str:
    """The pattern in the form that xgrammar enforces."""
    trees = expressions(pattern, keyword)
    if len(trees) > 1:
        raise Unenforceable(f"a lookahead in '{keyword}' cannot be enforced", keyword)
    if largest_count(trees[0]) > MAX_COUNT:
        reason = f"a repetition count above {MAX_COUNT} in '{keyword}' cannot be enforced"
        raise Unenforceable(reason, keyword)
    if not is_deterministic(trees[0]):
        reason = f"an ambiguous expression in '{keyword}' cannot be enforced"
        raise Unenforceable(reason, keyword)
    if needs_escapes(trees[0]):  # xgrammar 0.2.8 allows no escapes in some expressions
        reason = f"a quote, a backslash or a control character in '{keyword}' cannot be enforced"
        raise Unenforceable(reason, keyword)
    return within_json_for_xgrammar(trees[0])


def expressions(pattern: Any, keyword: str, search: Search = Search.ANCHORED) -> tuple[Node, ...]:
    """The expressions that a text must match. Raises InvalidSchema if no engine can enforce it."""
    try:
        if not isinstance(pattern, str):
            raise ValueError("expected a regular expression")
        return whole_texts(pattern, search)
    except ValueError as error:
        shown = str(pattern)
        shown = f"{shown[:64]}..." if len(shown) > 64 else shown
        raise InvalidSchema(f"'{keyword}' {shown!r}: {error}", keyword) from None


def innermost_first(schema: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each part of a schema, with its path: parts come before the schemas that they are in."""
    for key, value in schema.items() if isinstance(schema, Mapping) else ():
        if key in MAPS and isinstance(value, Mapping):
            for name, each in value.items():
                yield from innermost_first(each, (*at, key, name))
        elif key in LISTS and isinstance(value, list):
            for i, each in enumerate(value):
                yield from innermost_first(each, (*at, key, i))
        elif key in ONE:
            yield from innermost_first(value, (*at, key))
    yield at, schema


def typed_alternatives(node: Mapping[str, Any]) -> list[Any]:
    """The alternatives of `oneOf`, with the type next to it."""
    if "type" not in node:
        return list(node["oneOf"])
    return [
        {"type": node["type"], **each} if isinstance(each, Mapping) else each
        for each in node["oneOf"]
    ]


def _check_values(node: Mapping[str, Any]) -> None:
    """Raises InvalidSchema for a keyword whose value has the wrong type."""
    for kinds, keywords in _VALUES:
        for key in keywords:
            if key in node and (
                not isinstance(node[key], kinds)
                or (isinstance(node[key], bool) and bool not in kinds)
            ):
                raise InvalidSchema(f"{key!r} has a value of the wrong type", key)
    if "multipleOf" in node and not _is_divisor(node["multipleOf"]):
        reason = f"a 'multipleOf' of more than {MAX_DIVISOR_DIGITS} digits, or below 0"
        raise InvalidSchema(f"{reason}, cannot be enforced", "multipleOf")


def _is_divisor(value: float) -> bool:
    """Zeros at the end, and before the first other digit, do not count."""
    return value > 0 and len(Decimal(str(value)).normalize().as_tuple().digits) <= (
        MAX_DIVISOR_DIGITS
    )


def _ignored_keywords(node: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Parts that xgrammar would ignore, and the keywords that cause it."""
    yield from ((f"'{key}'", key) for key in _UNSUPPORTED if key in node)
    if "if" in node and node.keys() & {"then", "else"}:  # alone, they have no effect
        yield "'if'", "if", "then", "else"
    yield from (
        (f"'{key}'", key)
        for key in ("unevaluatedProperties", "unevaluatedItems")
        if node.get(key, True) is not True
    )
    if node.get("uniqueItems"):
        yield "'uniqueItems'", "uniqueItems"
    if "multipleOf" in node:
        yield "'multipleOf'", "multipleOf"
    if isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1:
        yield "'allOf' of several schemas", "allOf"
    yield from (
        (f"'{key}' of more than {_DECIMALS} decimals", key)
        for key in BOUNDS
        if key in node and round(node[key], _DECIMALS) != node[key]
    )
    yield from _ignored_text_keywords(node)
    yield from _ignored_object_keywords(node)


def _ignored_text_keywords(node: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    text = [key for key in ("pattern", "format") if key in node]
    if "format" in text and node["format"] not in KNOWN_FORMATS:
        text.remove("format")
    if len(text) > 1 or (text and any(key in node for key in _LENGTHS)):
        beside = ("format", *_LENGTHS) if text[0] == "pattern" else _LENGTHS
        yield f"'{text[0]}' together with other rules for the same text", *beside


def _ignored_object_keywords(node: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    patterns = node.get("patternProperties") or {}
    if patterns and (len(patterns) > 1 or node.get("properties")):
        yield "'patternProperties' together with other properties", "patternProperties"
    names = node.get("propertyNames")
    if names is not None and (patterns or node.get("properties") or node.get("required")):
        yield "'propertyNames' together with properties", "propertyNames"
    if node.get("minProperties", 0) > len(node.get("required") or ()) and (
        node.get("additionalProperties", True) is not False
    ):
        yield "'minProperties' of properties without a name", "minProperties"


def _rewrite_combinator(node: dict[str, Any], combinators: list[str]) -> dict[str, Any]:
    """xgrammar reads a combinator and ignores its siblings, but a type can move into it."""
    beside = node.keys() - ANNOTATIONS - set(combinators)
    if len(combinators) > 1:
        reason = f"'{combinators[0]}' together with '{combinators[1]}' cannot be enforced"
        raise Unenforceable(reason, combinators[1])
    (key,) = combinators
    if beside == {"type"} and key != "$ref":
        kind = node.pop("type")
        node[key] = [_with_type(each, kind) for each in node[key]]
    elif beside:
        dropped = beside if key == "$ref" else {key}
        reason = f"'{key}' together with '{min(beside)}' cannot be enforced"
        raise Unenforceable(reason, *dropped)
    if key in ("anyOf", "oneOf"):
        if len(node[key]) > MAX_ALTERNATIVES:
            raise InvalidSchema(f"'{key}' of more than {MAX_ALTERNATIVES} alternatives", key)
        # xgrammar need not know that the alternatives are disjoint
        node["anyOf"] = _drop_false(node.pop(key))
    return node


def _drop_false(alternatives: list[Any]) -> list[Any]:
    """xgrammar refuses alternatives that match nothing."""
    possible = [each for each in alternatives if each is not False]
    if not possible:
        raise InvalidSchema("no alternative can match", "anyOf", "oneOf")
    return possible


def _with_type(schema: Any, kind: Any) -> Any:
    if schema is True:
        return {"type": kind}
    if not isinstance(schema, dict) or schema.get("type") == kind:
        return schema
    if "type" in schema or schema.keys() & {*COMBINATORS, "const", "enum"}:
        reason = "a type next to alternatives with their own types cannot be enforced"
        raise Unenforceable(reason, "type")
    return {"type": kind, **schema}


def _rewrite_enum(node: dict[str, Any]) -> dict[str, Any]:
    """xgrammar reads only the values, so values of other types are removed."""
    types = node.pop("type", None)
    if beside := node.keys() - ANNOTATIONS - {"enum"}:
        raise Unenforceable("'enum' together with other rules cannot be enforced", *beside)
    if types is not None:
        kinds = types if isinstance(types, list) else [types]
        values = [value for value in node["enum"] if any(_is(value, kind) for kind in kinds)]
        if not values:
            raise InvalidSchema("no value of 'enum' or 'const' matches 'type'", "type")
        node["enum"] = values
    return node


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON_TYPES.get(kind, ()))


def add_types(node: dict[str, Any]) -> None:
    """Add the types that a schema without one is about. Values of other types would match too, but
    need not be allowed; xgrammar would ignore the keywords.
    """
    if "type" in node:
        return
    types = dict.fromkeys(_TYPE_OF_KEYWORD[key] for key in node if key in _TYPE_OF_KEYWORD)
    if "format" in node:
        types["string"] = "string"
    if types:
        node["type"] = next(iter(types)) if len(types) == 1 else list(types)


def _describe_required(node: dict[str, Any]) -> None:
    """xgrammar requires only properties that are described."""
    properties, others = node.get("properties") or {}, node.get("additionalProperties", True)
    unsaid = [name for name in node.get("required") or () if name not in properties]
    if unsaid and others is False:
        raise InvalidSchema(f"{unsaid[0]!r} is required but not allowed", "additionalProperties")
    if unsaid and "patternProperties" in node:
        reason = "'required' together with 'patternProperties' cannot be enforced"
        raise Unenforceable(reason, "patternProperties")
    if unsaid:
        node["properties"] = {**properties, **dict.fromkeys(unsaid, others)}
    optional = len(properties) - (len(node.get("required") or ()) - len(unsaid))
    if optional > MAX_OPTIONAL:
        reason = f"at most {MAX_OPTIONAL} properties of an object may be optional"
        raise InvalidSchema(reason, "properties", "required")


def _allow_other_properties(node: dict[str, Any]) -> None:
    """An object without described properties allows any, in a list of types too."""
    if not node.keys() & {"properties", "patternProperties", "propertyNames"}:
        node.setdefault("additionalProperties", True)


def _allow_other_items(node: dict[str, Any]) -> None:
    """xgrammar forbids further array items if they are not described."""
    known = node.get("prefixItems") or ()
    if "items" not in node and (not known or node.get("minItems", 0) > len(known)):
        node["items"] = {}
