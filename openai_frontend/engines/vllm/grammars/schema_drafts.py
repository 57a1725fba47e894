"""Rewrites keywords of older drafts of JSON Schema, and references that xgrammar cannot follow."""

from collections.abc import Mapping
from typing import Any

_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


def current_draft(schema: Any) -> Any:
    """The schema in draft 2020-12, with the same meaning."""
    definitions: dict[str, Any] = {}
    whole = _current(schema, schema, definitions)
    if definitions:
        whole["$defs"] = {**whole.get("$defs", {}), **definitions}
    return whole


def _current(schema: Any, root: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_current(each, root, definitions) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    node = {
        key: value if key in ("enum", "const") else _current(value, root, definitions)
        for key, value in schema.items()
    }
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
    for exclusive, bound in _BOUNDS:
        if isinstance(node.get(exclusive), bool) and bound in node and node.pop(exclusive):
            node[exclusive] = node.pop(bound)
    _shorten_reference(node, root, definitions)
    return node


def _shorten_reference(node: dict[str, Any], root: Any, definitions: dict[str, Any]) -> None:
    """xgrammar does not decode the names in a reference."""
    reference = node.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/") or "~" not in reference:
        return
    name = f"{reference[2:].replace('/', '.').replace('~', '-')}"
    if name not in definitions:
        definitions[name] = None  # the target may refer to itself
        definitions[name] = _current(_target(reference, root), root, definitions)
    node["$ref"] = f"#/$defs/{name}"


def _target(reference: str, root: Any) -> Any:
    found = root
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found
