"""Rewrites JSON schemas for llguidance: patterns are expressions that every dialect reads the same
way, and formats that llguidance defines differently are patterns.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from openai_frontend.engines.vllm.grammars.json_schema import (
    ANNOTATIONS,
    BOUNDS,
    COMBINATORS,
    DEFINITIONS,
    KNOWN_FORMATS,
    LISTS,
    MAPS,
    ONE,
    InvalidSchema,
    add_types,
    expressions,
    typed_alternatives,
)
from openai_frontend.engines.vllm.grammars.patterns import FORMATS
from openai_frontend.engines.vllm.grammars.regex_search import Search
from openai_frontend.engines.vllm.grammars.regex_text import for_llguidance
from openai_frontend.engines.vllm.grammars.regex_tree import Node
from openai_frontend.engines.vllm.grammars.schema_overlap import are_disjoint

# At most one space after a comma or colon, and no other whitespace
# (docs/decisions/0012-constraints.md). They replace a client's own, which could make llguidance
# ignore keywords.
_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}

# Exclusive bound, the inclusive one, the side of the allowed numbers, the tighter of two
_EXCLUSIVE = (
    ("exclusiveMinimum", "minimum", math.inf, max),
    ("exclusiveMaximum", "maximum", -math.inf, min),
)
_MARGIN = 1e-9
_LARGEST = 2**53
_DECIMALS = 15
_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")
_MOST = 10_000


def llguidance_schema(schema: Any) -> Any:
    """The schema in a form that llguidance enforces completely, or refuses. Raises InvalidSchema
    for a pattern or a number that it would misread.
    """
    whole = _LLGuidanceRewriter(schema).rewrite(schema)
    return {**whole, "x-guidance": _OPTIONS} if isinstance(whole, Mapping) else whole


def _merges(schema: Mapping[str, Any]) -> bool:
    """Whether several parts of the schema are about the same value."""
    combined = schema.keys() & {*COMBINATORS}
    return "allOf" in combined or (bool(combined) and len(schema.keys() - ANNOTATIONS) > 1)


def _has_merged(schema: Any) -> bool:
    """Whether the schema, or one in it, merges parts."""
    if isinstance(schema, list):
        return any(map(_has_merged, schema))
    if not isinstance(schema, Mapping):
        return False
    return _merges(schema) or any(map(_has_merged, schema.values()))


class _LLGuidanceRewriter:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._closed = not _has_merged(root)

    def rewrite(self, schema: Any, *, merged: bool = False) -> Any:
        """`merged`: other parts may be about the same value, and give its type."""
        if not isinstance(schema, Mapping):
            return schema
        inside = merged or _merges(schema)
        node = {key: self._rewrite_member(key, schema[key], merged=inside) for key in schema}
        if (
            "oneOf" in node
            and "anyOf" not in node
            and are_disjoint(typed_alternatives(schema), self._root)
        ):
            node["anyOf"] = node.pop("oneOf")
        if node.get("format") not in KNOWN_FORMATS:
            node.pop("format", None)  # unknown formats are annotations
        if not inside and not node.keys() & {*COMBINATORS, "const", "enum"}:
            add_types(node)
        _check_numbers(node)
        if node.get("type") != "integer":
            _include_bounds(node)
        names = node.get("patternProperties")
        if isinstance(names, Mapping):
            node["patternProperties"] = {
                _whole(*expressions(key, "patternProperties", Search.ANYWHERE)): names[key]
                for key in names
            }
        elif self._closed and node.get("properties"):
            # xgrammar does the same: a model is not led to invent more properties.
            node.setdefault("additionalProperties", False)
        return _rewrite_text(node)

    def _rewrite_member(self, key: str, value: Any, *, merged: bool) -> Any:
        if key in DEFINITIONS:  # a reference may stand beside other keywords
            merged = not self._closed
        rewrite = partial(self.rewrite, merged=merged)
        if key in MAPS and isinstance(value, Mapping):
            return {name: rewrite(each) for name, each in value.items()}
        if key in LISTS and isinstance(value, list):
            return list(map(rewrite, value))
        return rewrite(value) if key in ONE else value


def _check_numbers(node: Mapping[str, Any]) -> None:
    """llguidance reads larger whole numbers as others, or crashes, and rounds more decimals. Its
    time and memory grow with counts of items.
    """
    for key, value in node.items():
        is_bound = key in BOUNDS and _is_number(value)
        if (is_bound and (abs(value) > _LARGEST or round(value, _DECIMALS) != value)) or (
            key in _COUNTS and _is_number(value) and value > _MOST
        ):
            raise InvalidSchema(f"the number of '{key}' cannot be enforced", key)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _include_bounds(node: dict[str, Any]) -> None:
    """Replace whole exclusive bounds by inclusive ones beside them: llguidance 1.7 allows the whole
    number itself if the other bound begins with the same digits, as 1 in 1 < x < 1.5.
    """
    for exclusive, inclusive, side, tighter in _EXCLUSIVE:
        bound = node.get(exclusive)
        if bound is None or not _is_number(bound) or bound != round(bound):
            continue
        beside = tighter(math.nextafter(bound, side), bound + math.copysign(_MARGIN, side))
        node[inclusive] = tighter(beside, node.get(inclusive, beside))
        del node[exclusive]


def _rewrite_text(node: dict[str, Any]) -> dict[str, Any]:
    trees: list[Node] = []
    if "pattern" in node:
        trees += expressions(node.pop("pattern"), "pattern")
    if node.get("format") in FORMATS:
        trees += expressions(FORMATS[node.pop("format")], "format")
    if len(trees) == 1:
        node["pattern"] = _whole(trees[0])
    elif trees:
        node["allOf"] = [*node.get("allOf", ()), *({"pattern": _whole(each)} for each in trees)]
    return node


def _whole(*trees: Node) -> str:
    """The pattern for the whole text, since llguidance searches for patterns."""
    if len(trees) > 1:
        raise InvalidSchema("a lookahead in the name of a property cannot be enforced")
    return f"^(?:{for_llguidance(trees[0])})$"
