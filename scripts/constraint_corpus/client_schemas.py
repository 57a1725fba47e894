"""Schemas as clients write them: zod 4 and pydantic 2, OpenAPI 3.1 documents and MCP servers.

Each file of `data` has the forms of one: what zod's `toJSONSchema` makes of its types for drafts
2020-12, 7 and 4 and OpenAPI 3.0, what pydantic's `model_json_schema` makes of its own, what people
write by hand, and schemas that are meaningful as a whole.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

DATA = Path(__file__).with_name("data")
RANDOM = 240
_PARTS = ("zod", "pydantic", "others")


def forms(name: str) -> list[Schema]:
    """The schemas of one file."""
    read: list[Schema] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return read


def client_schemas(seed: int) -> Iterator[tuple[str, Schema]]:
    """Names and schemas: each form as a property, whole schemas, and random objects of forms."""
    leaves = []
    for name in _PARTS:
        leaves += forms(name)
        yield from ((f"{name} {i}", as_property(form)) for i, form in enumerate(forms(name)))
    yield from ((f"whole {i}", schema) for i, schema in enumerate(forms("whole")))
    chooser = random.Random(seed)
    for i in range(RANDOM):
        yield f"random object {i}", _object(chooser, leaves, depth=2)


def as_property(schema: Any) -> Schema:
    return {
        "type": "object",
        "properties": {"value": schema},
        "required": ["value"],
        "additionalProperties": False,
    }


def _object(chooser: random.Random, leaves: list[Schema], depth: int) -> Schema:
    names = chooser.sample(("city", "days", "unit_of", "x", "Größe", "a b", "kind"), 3)
    properties = {name: _part(chooser, leaves, depth) for name in names[: chooser.randint(1, 3)]}
    schema: Schema = {"type": "object", "properties": properties}
    if chooser.random() < 0.8:
        schema["required"] = [name for name in properties if chooser.random() < 0.7]
    if chooser.random() < 0.6:
        schema["additionalProperties"] = False
    return schema


def _part(chooser: random.Random, leaves: list[Schema], depth: int) -> Schema:
    draw = chooser.random()
    if depth and draw < 0.15:
        return _object(chooser, leaves, depth - 1)
    if depth and draw < 0.3:
        return {"type": "array", "items": _part(chooser, leaves, depth - 1), "maxItems": 2}
    if depth and draw < 0.4:
        return {"anyOf": [_part(chooser, leaves, depth - 1), {"type": "null"}]}
    return chooser.choice(leaves)
