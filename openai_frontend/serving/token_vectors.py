"""Vectors of tokens as JSON: an input may have megabytes of them, so they are written in blocks."""

from collections.abc import Iterator, Sequence

import orjson
import pybase64

from openai_frontend.errors import InvalidRequest
from openai_frontend.pooling import EmbeddingResult
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.serving.admission.model import Describes
from openai_frontend.serving.pooling import (
    FLOAT_BYTES,
    TimeSlicer,
    finite_numbers,
    rendering_cost_us,
)

# Numbers of one response: 32 MiB, and at most 100 MB of JSON
MAX_NUMBERS = 2**23
_BLOCK_BYTES = 64 * 1024  # which take 0.7 ms as JSON
_BASE64_BYTES = 3  # that become four characters


class TokenVectors:
    """Renders the results of one call, and limits their numbers."""

    def __init__(self, *, as_base64: bool) -> None:
        self._as_base64 = as_base64
        self._numbers = 0

    async def render(self, result: EmbeddingResult, width: int, slicer: TimeSlicer) -> bytes:
        """An array of arrays, or the bytes of all vectors in base64.

        Raises InvalidRequest if the call has too many numbers, InferenceFailed if one is not
        finite.
        """
        self._numbers += result.embedding.nbytes // FLOAT_BYTES
        _check_numbers(self._numbers)
        parts = []
        for block in _blocks(result.embedding.cast("B"), width * FLOAT_BYTES):
            await slicer.take(rendering_cost_us(block, as_base64=self._as_base64))
            parts.append(self._block(block, width))
        return b'"%b"' % b"".join(parts) if self._as_base64 else b"[%b]" % b",".join(parts)

    def _block(self, block: memoryview, width: int) -> bytes:
        numbers = finite_numbers(block)
        if self._as_base64:
            return pybase64.b64encode(block)
        rows = numbers.reshape(-1, width)
        return orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def check_prompts(prompts: Sequence[Prompt], model: Describes) -> None:
    """Refuse embeddings of more tokens than a response can have, before they are computed."""
    if model.facts.dimensions is not None:
        tokens = sum(len(each.token_ids) for each in prompts)
        _check_numbers(tokens * model.facts.dimensions)


def _check_numbers(count: int) -> None:
    if count > MAX_NUMBERS:
        message = (
            f"Invalid 'input': vectors of all its tokens have {count} numbers or more, above the "
            f"limit of {MAX_NUMBERS} per request. Send fewer or shorter inputs."
        )
        raise InvalidRequest(message, param="input", code="max_tokens_per_request")


def _blocks(vectors: memoryview, row_bytes: int) -> Iterator[memoryview]:
    """Whole rows, three at least, so that the base64 of blocks is that of the whole."""
    size = max(1, _BLOCK_BYTES // (row_bytes * _BASE64_BYTES)) * row_bytes * _BASE64_BYTES
    return (vectors[start : start + size] for start in range(0, vectors.nbytes, size))
