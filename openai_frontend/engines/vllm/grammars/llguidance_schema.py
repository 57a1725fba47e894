"""Rewrites JSON schemas for llguidance: patterns are expressions that every dialect reads the same
way, and formats that llguidance defines differently are patterns.
"""

from collections.abc import Mapping
from typing import Any

from openai_frontend.engines.vllm.grammars.json_schema import (
    ANNOTATIONS,
    KNOWN_FORMATS,
    LISTS,
    MAPS,
    ONE,
    InvalidSchema,
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


def llguidance_schema(schema: Any) -> Any:
    """The schema in a form that llguidance enforces completely, or refuses. Raises InvalidSchema
    for a pattern that it would misread.
    """
    whole = _LLGuidanceRewriter(schema).rewrite(schema)
    return {**whole, "x-guidance": _OPTIONS} if isinstance(whole, Mapping) else whole


def _is_merged(schema: Any) -> bool:
    """Whether an object's properties may come from several of its parts."""
    if isinstance(schema, list):
        return any(map(_is_merged, schema))
    if not isinstance(schema, Mapping):
        return False
    combined = schema.keys() & {"allOf", "anyOf", "oneOf", "$ref"}
    if "allOf" in combined or (combined and len(schema.keys() - ANNOTATIONS) > 1):
        return True
    return any(map(_is_merged, schema.values()))


class _LLGuidanceRewriter:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._closed = not _is_merged(root)

    def rewrite(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        node = {key: self._rewrite_member(key, value) for key, value in schema.items()}
        if (
            "oneOf" in node
            and "anyOf" not in node
            and are_disjoint(typed_alternatives(schema), self._root)
        ):
            node["anyOf"] = node.pop("oneOf")
        names = node.get("patternProperties")
        if isinstance(names, Mapping):
            node["patternProperties"] = {
                _whole(*expressions(key, "patternProperties", Search.ANYWHERE)): names[key]
                for key in names
            }
        elif self._closed and node.get("properties"):
            # As with xgrammar: a model is not led to invent more properties.
            node.setdefault("additionalProperties", False)
        return _rewrite_text(node)

    def _rewrite_member(self, key: str, value: Any) -> Any:
        if key in MAPS and isinstance(value, Mapping):
            return {name: self.rewrite(each) for name, each in value.items()}
        if key in LISTS and isinstance(value, list):
            return [self.rewrite(each) for each in value]
        return self.rewrite(value) if key in ONE else value


def _rewrite_text(node: dict[str, Any]) -> dict[str, Any]:
    trees: list[Node] = []
    if "pattern" in node:
        trees += expressions(node.pop("pattern"), "pattern")
    if node.get("format") in FORMATS:
        trees += expressions(FORMATS[node.pop("format")], "format")
    elif "format" in node and node["format"] not in KNOWN_FORMATS:
        del node["format"]  # unknown formats are annotations
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
