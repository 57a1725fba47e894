"""Grammars for arguments written one by one: Python keyword arguments, and values between tags.

Arguments have the schema's order; optional ones may be missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import orjson

from openai_frontend.parsing.argument_schema import argument_types
from openai_frontend.serving.constraints import formats
from openai_frontend.serving.constraints.family_tags import Tagged
from openai_frontend.serving.constraints.formats import Format, Unconstrainable
from openai_frontend.serving.constraints.json_schema import references

# With commas between them, optional arguments make a grammar grow quadratically.
_MAX_PAIRS = 64
_MAX_COUNT = 127  # what engines accept in a regular expression within a structural tag
_DEFINITIONS = ("$defs", "definitions")
_COMBINED = ("$ref", "anyOf", "oneOf", "allOf", "patternProperties", "minProperties")
_OF_TEXT = frozenset(("type", "title", "description", "default", "examples", "format"))

_VALUES = ("array", "boolean", "null", "number", "object")
_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]{0,63}="
_ANY_NAME = '[^<>"\\r\\n]{1,64}'
# For text with a length: not what starts its end tag, nor spaces, which may belong to the tag.
_CHARACTER = "[!-;=-~\u00a1-\ud7ff\ue000-\U0010ffff]"

Pair = tuple[Format, bool]  # argument, required


class CopyBudget:
    """Bounds the JSON that the grammars of one request repeat."""

    def __init__(self, max_bytes: int = 1024 * 1024) -> None:
        self._left = max_bytes
        self._copies: dict[int, list[Any]] = {}  # by the id of the part

    def with_definitions(self, part: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
        """A copy of the part for a grammar of its own."""
        copy = {**part, **definitions}
        self._copies.setdefault(id(part), []).append(copy)
        return copy

    def of(self, part: Any) -> Sequence[Any]:
        """The copies of a part."""
        return self._copies.get(id(part), ())

    def take(self, part: Any, times: int) -> None:
        """Repeat a part so many times. Raises Unconstrainable if it is too much."""
        if times:
            self._left -= len(orjson.dumps(part)) * times
        if self._left < 0:
            raise Unconstrainable


def keywords(schema: Mapping[str, Any], copies: CopyBudget) -> Format:
    """`a=1, b="x"`, with values in JSON, which the parser reads like Python's."""
    properties = _properties(schema, copies)
    if len(properties) > _MAX_PAIRS or not all(map(str.isidentifier, properties)):
        raise Unconstrainable
    pairs = [
        (formats.sequence(formats.const(f"{name}="), _value(schema, each, copies)), needed)
        for name, each, needed in _described(schema, properties)
    ]
    left_out = sum(1 for _ in takewhile(lambda pair: not pair[1], pairs))
    # everything that may follow is repeated after each
    copies.take([pair for pair, _ in pairs], left_out)
    return _from_first(pairs)


def tagged(schema: Mapping[str, Any], style: Tagged, copies: CopyBudget) -> Format:
    """Values between tags that contain their names."""
    pairs = []
    for name, each, needed in _described(schema, _properties(schema, copies)):
        if any(mark in name for mark in '<>"'):
            raise Unconstrainable
        pair = _tagged_pair(schema, name, each, style, copies)
        pairs.append(pair if needed else formats.optional(pair))
    return formats.sequence(*pairs) if pairs else formats.const("")


def any_keywords() -> Format:
    """Like `keywords`, with any names and values."""
    pair = formats.sequence(formats.regex(_IDENTIFIER), formats.json_value({}))
    more = formats.star(formats.sequence(formats.const(", "), pair))
    return formats.optional(formats.sequence(pair, more))


def any_tagged(style: Tagged) -> Format:
    """Like `tagged`, with any names and values."""
    texts = _any_tagged_pair(style.text, formats.any_text(style.mark), style)
    if style.value == style.text:
        return formats.star(texts)
    values = _any_tagged_pair(style.value, formats.json_value({}), style)
    return formats.star(formats.either(texts, values))


def _any_tagged_pair(begin: str, value: Format, style: Tagged) -> Format:
    opens, closes = begin.split("%s")
    name = formats.regex(_ANY_NAME)
    end = formats.const(style.end)
    return formats.sequence(formats.const(opens), name, _typed(closes, _VALUES), value, end)


def _typed(text: str, types: Iterable[str]) -> Format:
    """The text with any of the types in it, if it states one."""
    kinds = {"number" if each == "integer" else each for each in types}
    return formats.either(*map(formats.const, sorted({text.replace("%t", kind) for kind in kinds})))


def _tagged_pair(
    schema: Mapping[str, Any], name: str, each: Any, style: Tagged, copies: CopyBudget
) -> Format:
    types = argument_types(schema, name)  # as the parser sees them
    if "string" not in types and types:
        before, value = style.value, _value(schema, each, copies)
    elif types == {"string"}:
        before, value = style.text, _text(each, style)
    else:  # the parser could read its text as either type
        raise Unconstrainable
    opens = _typed(before.replace("%s", name), types)
    return formats.sequence(opens, value, formats.const(style.end))


def _text(schema: Mapping[str, Any], style: Tagged) -> Format:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        texts = [value for value in values if isinstance(value, str)]
        if not texts or any(style.mark in text or text != text.strip() for text in texts):
            raise Unconstrainable
        return formats.either(*map(formats.const, texts))
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if schema.keys() - _OF_TEXT - {"minLength", "maxLength"}:
        raise Unconstrainable  # a pattern, or a reference to more
    if not least:
        return formats.any_text(style.mark, most=most)
    if max(least, most or 0) > _MAX_COUNT:
        raise Unconstrainable
    return formats.regex(f"{_CHARACTER}{{{least},{'' if most is None else most}}}")


def _properties(schema: Mapping[str, Any], copies: CopyBudget) -> Mapping[str, Any]:
    if any(key in schema for key in _COMBINED):
        raise Unconstrainable
    within = tuple(f"#/{key}/" for key in _DEFINITIONS)
    if not all(each.startswith(within) for each in references(schema)):
        raise Unconstrainable
    properties: Mapping[str, Any] = schema.get("properties") or {}
    open_ended = schema.get("additionalProperties", False) not in (False, None)
    if (open_ended and not properties) or set(schema.get("required") or ()) - properties.keys():
        raise Unconstrainable
    copies.take(_definitions(schema), sum(map(_refers, properties.values())))
    return properties


def _described(
    schema: Mapping[str, Any], properties: Mapping[str, Any]
) -> list[tuple[str, Any, bool]]:
    needed = frozenset(schema.get("required") or ())
    return [(name, each, name in needed) for name, each in properties.items()]


def _value(schema: Mapping[str, Any], each: Any, copies: CopyBudget) -> Format:
    """A property's value, with the schema's definitions if it refers to them."""
    if not _refers(each):
        return formats.json_value(each)
    return formats.json_value(copies.with_definitions(each, _definitions(schema)))


def _definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in _DEFINITIONS if key in schema}


def _refers(schema: Any) -> bool:
    return next(references(schema), None) is not None


def _from_first(pairs: list[Pair]) -> Format:
    """The first argument that is present has no comma before it."""
    if not pairs:
        return formats.const("")
    (pair, needed), *rest = pairs
    whole = formats.sequence(pair, *(_after_another(*each) for each in rest))
    return whole if needed else formats.either(whole, _from_first(rest))


def _after_another(pair: Format, needed: bool) -> Format:
    with_comma = formats.sequence(formats.const(", "), pair)
    return with_comma if needed else formats.optional(with_comma)
