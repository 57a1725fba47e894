"""Schemas of answers and arguments: they are checked and relaxed, or refused with their path."""

from typing import Any

import orjson

from openai_frontend.serving.constraints.json_schema import check_schema
from openai_frontend.serving.constraints.schema_reduction import relaxed
from scripts.fuzz.outcome import outcome

_KEYWORDS = (
    *("type", "properties", "items", "anyOf", "oneOf", "allOf", "$ref", "$defs", "$id", "enum"),
    *("required", "not", "if", "additionalProperties", "prefixItems", "patternProperties", "const"),
    *("definitions", "dependentSchemas", "$dynamicRef", "pattern", "format", "minItems"),
)
WORDS = (
    *(f'"{word}":' for word in _KEYWORDS),
    '"#/$defs/a"',
    '"#/0"',
    '"object"',
    '"string"',
    "{}",
)
SEEDS = (
    b'{"type":"object","properties":{"a":{"type":["string","null"]}},"required":["a"]}',
    b'{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}',
    b'{"anyOf":[{"enum":[1,"a"]},{"items":[{}],"not":{}}],"oneOf":[true]}',
    b'{"$ref":"#/items/0","items":[{"type":"null"}],"prefixItems":[{}]}',
)


def check(data: bytes) -> None:
    try:
        schema: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        return
    if outcome(lambda: check_schema(schema, "tools[0].function.parameters"))[0] == "value":
        once = relaxed(schema)
        assert relaxed(once) == once
        assert outcome(lambda: check_schema(once, "a"))[0] == "value"
