"""JSON that comes within a tensor: bounded in bytes and parts before the event loop parses it."""

from typing import Any

import orjson

from openai_frontend.json_size import TooManyParts, check_json_size


def read_object(text: bytes, name: str, max_bytes: int) -> dict[str, Any]:
    """Raises ValueError, which names the tensor or field `name`."""
    if len(text) > max_bytes:
        raise ValueError(f"{name}: at most {max_bytes} bytes of JSON, not {len(text)}")
    try:
        check_json_size(text)
        document = orjson.loads(text)
    except TooManyParts as error:
        raise ValueError(f"{name}: {error}") from None
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{name}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{name}: not a JSON object")
    return document
