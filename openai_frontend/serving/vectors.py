"""Vectors as JSON and as scores, straight from their tensors' memory. Never a list of floats.

16 vectors of 4,096 numbers: 0.5 ms as base64, 2.3 as numbers, 15 through pydantic.
"""

import base64
from typing import Any

import numpy
import orjson

from openai_frontend.errors import InferenceFailed


def render(index: int, vector: memoryview, *, as_base64: bool) -> orjson.Fragment:
    """One element of an answer's `data`."""
    numbers = _finite(vector)
    # Base64 needs no escaping, so orjson need not look for what to escape.
    embedding = (
        orjson.Fragment(b'"' + base64.b64encode(vector) + b'"')
        if as_base64
        else orjson.Fragment(orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY))
    )
    item = {"object": "embedding", "index": index, "embedding": embedding}
    return orjson.Fragment(orjson.dumps(item))


def rendering_cost_us(vector: memoryview, *, as_base64: bool) -> float:
    """What `render` takes of the event loop."""
    return 5 + vector.nbytes * (0.002 if as_base64 else 0.01)


def _finite(vector: memoryview) -> numpy.ndarray[Any, numpy.dtype[numpy.float32]]:
    """The tensor's memory as numbers; JSON has none that are not finite, and scores need them."""
    numbers = numpy.frombuffer(vector, "<f4")
    if not numpy.isfinite(numbers).all():
        raise InferenceFailed("The model's vector holds numbers that are not finite.")
    return numbers


def cosine_similarity(first: memoryview, second: memoryview) -> float:
    """-1 to 1; 0 where one of them has no direction."""
    one, other = (_finite(each).astype("f8") for each in (first, second))
    lengths = float(numpy.linalg.norm(one) * numpy.linalg.norm(other))
    return max(-1.0, min(1.0, float(one @ other) / lengths)) if lengths else 0.0
