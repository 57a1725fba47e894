"""A tensor's JSON survives decoding and encoding unchanged; any bytes can be encoded as JSON."""

import math
from itertools import chain
from typing import Any

import orjson

from openai_frontend.kserve import json_tensors
from openai_frontend.kserve.datatypes import DATATYPES
from scripts.fuzz.draw import Draw
from scripts.fuzz.outcome import outcome

_ALL = tuple(DATATYPES.values())

WORDS = (
    "[[",
    "]]",
    "true",
    '"a"',
    "1e38",
    "3.5e38",
    "-129",
    "65536",
    "18446744073709551615",
    "1e-50",
)
SEEDS = tuple(
    bytes([at, kind]) + text
    for at in range(len(_ALL))
    for kind, text in ((0, b"[[1,0],[0,1]]"), (1, b"\x01\x00\x00\x00a"), (2, b'["a","\\u00e9"]'))
)


def check(data: bytes) -> None:
    draw = Draw(data)
    datatype, way = draw.choice(_ALL), draw.byte()
    rest = draw.rest()
    if way & 1:
        count = len(rest) // (datatype.size or 5)
        kind, text = outcome(lambda: json_tensors.encode("a", datatype, [count], memoryview(rest)))
        assert kind == "refusal" or len(orjson.loads(text)) == count
        return
    try:
        given = orjson.loads(rest)
    except orjson.JSONDecodeError:
        return
    values = _flat(given)
    kind, raw = outcome(lambda: json_tensors.decode("a", datatype, [len(values)], given))
    if kind == "value":
        back = orjson.loads(json_tensors.encode("a", datatype, [len(values)], memoryview(raw)))
        assert all(map(_same, values, back)), (values, back)


def _flat(given: Any) -> list[Any]:
    values = given if isinstance(given, list) else []
    while values and all(isinstance(each, list) for each in values):
        values = list(chain.from_iterable(values))
    return values


def _same(given: Any, back: Any) -> bool:
    """Return whether the values are equal, except for digits that a smaller type cannot represent
    and values close to zero.
    """
    if isinstance(given, float):
        return math.isclose(given, back, rel_tol=1e-6, abs_tol=1e-44)
    return bool(given == back) or math.isclose(given, back, rel_tol=1e-6)
