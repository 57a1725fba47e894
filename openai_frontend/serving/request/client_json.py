"""JSON of values that a client has sent, among them integers that orjson cannot write."""

import json
from typing import Any

import orjson


def client_json(value: Any) -> bytes:
    """The value as JSON, with any integer. orjson writes integers of 64 bits only."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "surrogatepass")
