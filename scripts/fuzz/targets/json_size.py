"""The size check of a body before parsing.

It refuses JSON that is too deep or has too many parts, and no other JSON. The limits are lowered,
so that short inputs reach them.
"""

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from openai_frontend import json_limits

LIMITS = {"MAX_DEPTH": 8, "MAX_FIELDS": 6, "MAX_STRINGS": 24, "MAX_VALUES": 48, "_WINDOW": 16}
_SLACK = 3  # complete inner levels are removed before levels are counted

WORDS = ("[[[[", "]]]]", '{"":', "}", '"', '\\"', "\\\\", "[],", "{},", '"a",', "0,", " ")
SEEDS = (b'{"a":[[[1]]]}', b'{"a":"\\\\\\"[[[","b":[{},{}]}', b'["a","b","c"]')


def check(data: bytes) -> None:
    with patch.dict(vars(json_limits), LIMITS):
        refused = _is_refused(data)
    parsed = _parsed(data)
    if parsed is None or refused is None:
        return
    depth, values, fields = _depth(parsed), sum(1 for _ in _all(parsed)), _fields(parsed)
    if refused:
        least = depth > LIMITS["MAX_DEPTH"] or values > 16 or fields > LIMITS["MAX_FIELDS"]
        assert least, (depth, values, fields)
    else:
        assert depth <= LIMITS["MAX_DEPTH"] + _SLACK
        assert values <= 4 * (LIMITS["MAX_VALUES"] + LIMITS["MAX_STRINGS"])


def _is_refused(data: bytes) -> bool:
    try:
        json_limits.check_json_size(data)
    except json_limits.TooManyParts:
        return True
    return False


def _parsed(data: bytes) -> Any:
    """Return None for invalid JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _all(value: Any) -> Iterator[Any]:
    """Yield the value and every value in it; a key counts as a value."""
    yield value
    if isinstance(value, dict):
        yield from value
    for child in _children(value):
        yield from _all(child)


def _depth(value: Any) -> int:
    if not isinstance(value, (dict, list)):
        return 0
    return 1 + max(map(_depth, _children(value)), default=0)


def _fields(value: Any) -> int:
    return len(value) if isinstance(value, dict) else 0
