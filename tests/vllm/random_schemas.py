"""Random JSON schemas of arguments, in the forms that client generators (pydantic, zod) write, in
every combination.

Strings and arrays are bounded, so that every answer ends.
"""

import random
from typing import Any

Schema = dict[str, Any]

_PATTERNS = ("[a-z]{1,6}", "^[A-Z]{2}-\\d{1,3}$", "(yes|no)", 'a"b')
_FORMATS = ("date", "uuid", "ipv4", "time")
_WORDS = ("city", "days", "unit_of", "x", "Größe", "a b", "type", "$id", "items")


def arguments_schema(seed: int) -> Schema:
    """Return an object schema with some properties, and sometimes with definitions."""
    chooser = random.Random(seed)
    schema = _object(chooser, depth=3)
    if chooser.random() < 0.3:
        node = {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": 0, "maximum": 9},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value"],
            "additionalProperties": False,
        }
        schema["$defs"] = {"node": node, "word": _text(chooser)}
        schema["properties"]["list"] = {"$ref": "#/$defs/node"}
        schema["properties"]["word"] = {"$ref": "#/$defs/word", "description": "some word"}
        schema["required"] = [*schema["required"], "word"]
    return schema


def _any(chooser: random.Random, depth: int) -> Schema:
    kinds = [_text, _integer, _number, _enum, _constant, _boolean, _null, _formatted]
    if depth > 0:
        kinds += [lambda c: _object(c, depth - 1), lambda c: _array(c, depth - 1)] * 2
        kinds += [lambda c: _union(c, depth - 1)] * 2
    schema = chooser.choice(kinds)(chooser)
    if chooser.random() < 0.2:
        schema["description"] = "what it is"
    return schema


def _object(chooser: random.Random, depth: int) -> Schema:
    names = chooser.sample(_WORDS, chooser.randrange(4))
    properties = {name: _any(chooser, depth) for name in names}
    required = [name for name in names if chooser.random() < 0.6]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _array(chooser: random.Random, depth: int) -> Schema:
    least = chooser.randrange(2)
    schema: Schema = {"type": "array", "minItems": least, "maxItems": least + 2}
    if chooser.random() < 0.2:
        return {"type": "array", "prefixItems": [_integer(chooser), _boolean(chooser)]} | {
            "items": False,
            "minItems": 1,
        }
    schema["items"] = _any(chooser, depth)
    return schema


def _union(chooser: random.Random, depth: int) -> Schema:
    key = chooser.choice(["anyOf", "oneOf"])
    if key == "oneOf":  # mutually exclusive alternatives
        return {"oneOf": [_text(chooser), _integer(chooser), {"type": "null"}]}
    return {"anyOf": [_any(chooser, depth) for _ in range(chooser.randint(1, 3))]}


def _text(chooser: random.Random) -> Schema:
    if chooser.random() < 0.4:
        return {"type": "string", "pattern": chooser.choice(_PATTERNS)}
    return {"type": "string", "minLength": chooser.randrange(3), "maxLength": 12}


def _formatted(chooser: random.Random) -> Schema:
    return {"type": "string", "format": chooser.choice(_FORMATS)}


def _integer(chooser: random.Random) -> Schema:
    least = chooser.randint(-1000, 1000)
    return {"type": "integer", "minimum": least, "maximum": least + chooser.randint(0, 500)}


def _number(chooser: random.Random) -> Schema:
    return {"type": "number", "minimum": chooser.randint(-5, 5), "exclusiveMaximum": 9}


def _enum(chooser: random.Random) -> Schema:
    return {"enum": chooser.sample(["red", "grün", 'a "quote"', 1, 2.5, None, True, ["x"]], 3)}


def _constant(chooser: random.Random) -> Schema:
    return {"const": chooser.choice(["fixed", 7, {"a": [1, "b"]}])}


def _boolean(_chooser: random.Random) -> Schema:
    return {"type": "boolean"}


def _null(_chooser: random.Random) -> Schema:
    return {"type": "null"}
