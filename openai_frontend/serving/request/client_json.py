"""JSON that a client has sent, whose integers may exceed 64 bits: orjson cannot write them."""

import json
import re
from typing import Any

import orjson
from pydantic_core import from_json

_LONG_NUMBER = re.compile("[0-9]{19}")


def read_client_json(text: str) -> Any:
    """The value of JSON within a text of the request. Raises ValueError.

    Only orjson refuses `1e999` and NaN, and only pydantic's parser keeps integers above 64 bits.
    """
    value = orjson.loads(text)
    return from_json(text) if _LONG_NUMBER.search(text) else value


def client_json(value: Any) -> bytes:
    """The value as JSON, with any integer. orjson writes integers of 64 bits only."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "surrogatepass")
