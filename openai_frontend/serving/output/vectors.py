"""Vectors as JSON and as scores, straight from their tensors' memory. Never a list of floats.

16 vectors of 4,096 numbers: 0.1 ms as base64, 2.2 as numbers, 15 through pydantic.
"""

from typing import Any

import numpy
import orjson
import pybase64

from openai_frontend.errors import InferenceFailed


def render(index: int, vector: memoryview, *, as_base64: bool) -> bytes:
    """One element of an answer's `data`, as JSON."""
    numbers = _finite(vector)
    # Base64 needs no escaping. pybase64: 16 KB in 0.6 us, where Python's own takes 15.
    embedding = (
        b'"%b"' % pybase64.b64encode(vector)
        if as_base64
        else orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)
    )
    return b'{"object":"embedding","index":%d,"embedding":%b}' % (index, embedding)


def embedding_list(data: list[bytes], fields: dict[str, Any]) -> bytes:
    """An answer of rendered elements: its JSON, put together with one copy of what is long."""
    rest = orjson.dumps(fields)
    return b"".join([b'{"object":"list","data":[', b",".join(data), b"],", rest[1:]])


def rendering_cost_us(vector: memoryview, *, as_base64: bool) -> float:
    """What `render` takes of the event loop."""
    return 5 + vector.nbytes * (0.0005 if as_base64 else 0.01)


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
