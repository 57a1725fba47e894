"""Sparse vectors as JSON, in the form of text-embeddings-inference or as two lists."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
import orjson

from openai_frontend.errors import InvalidRequest, MalformedOutput
from openai_frontend.pooling import EmbeddingResult
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.serving.admission.model import ServingModel
from openai_frontend.serving.pooling import Pooled, Pooler, TimeSlicer, embedding_requests

_INT32_MAX = 2**31 - 1
_ENTRY_US = 0.4  # the event loop time of an entry, with its checks
_BLOCK = 2048  # entries that are written in one slice


class Entries(NamedTuple):
    """The entries of one vector as JSON numbers, by ascending index."""

    indices: Sequence[bytes]
    values: Sequence[bytes]


async def sparse_rows(
    id: str,
    prompts: Sequence[Prompt],
    model: ServingModel,
    pooler: Pooler,
    render: Callable[[int, EmbeddingResult, Entries], bytes],
) -> Pooled[bytes]:
    """The sparse vectors of one call's inputs, each as `render` writes it."""
    if "sparse_embed" not in model.tasks:
        message = f"The model '{model.name}' does not create sparse embeddings."
        raise InvalidRequest(message, param="model", code="unsupported_model")

    async def rendered(at: int, result: EmbeddingResult, slicer: TimeSlicer) -> bytes:
        return render(at, result, await _entries(at, result, slicer))

    requests = embedding_requests(id, prompts, task="sparse_embed")
    return await pooler.run(requests, prompts, model, render=rendered)


async def _entries(at: int, result: EmbeddingResult, slicer: TimeSlicer) -> Entries:
    """Checked, sorted, and without zeros. Raises MalformedOutput."""
    if (sparse := result.sparse) is None:
        raise MalformedOutput(f"The model returned no sparse vector for input[{at}].")
    indices, values = sparse.indices, sparse.values
    if len(indices) != len(values):
        raise MalformedOutput(
            f"The model returned {len(indices)} indices and {len(values)} values for input[{at}]."
        )
    await slicer.take(len(indices) * _ENTRY_US / 4)
    if not numpy.isfinite(values).all():
        raise MalformedOutput(f"The model returned a value for input[{at}] that is not finite.")
    if len(indices) and not 0 <= indices.min() <= indices.max() <= _INT32_MAX:
        raise MalformedOutput(
            f"The model returned an index for input[{at}] outside 0 to {_INT32_MAX}."
        )
    order = numpy.argsort(indices, kind="stable")
    indices, values = indices[order], values[order]
    if (repeated := len(indices) - len(numpy.unique(indices))) > 0:
        raise MalformedOutput(f"The model returned {repeated} indices twice for input[{at}].")
    kept = values != 0
    return Entries(*[await _numbers(each[kept], slicer) for each in (indices, values)])


async def _numbers(numbers: Any, slicer: TimeSlicer) -> list[bytes]:
    """Each number as JSON: of float32, the fewest digits."""
    written: list[bytes] = []
    for start in range(0, len(numbers), _BLOCK):
        block = numpy.ascontiguousarray(numbers[start : start + _BLOCK])
        await slicer.take(len(block) * _ENTRY_US / 2)
        written += orjson.dumps(block, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
    return written


def as_pairs(at: int, result: EmbeddingResult, entries: Entries) -> bytes:
    """`[{"index":7,"value":0.5},...]`, as text-embeddings-inference writes it."""
    pairs = zip(*entries, strict=True)
    return b"[%b]" % b",".join([b'{"index":%b,"value":%b}' % each for each in pairs])


def as_lists(entries: Entries) -> bytes:
    """`{"indices":[7,...],"values":[0.5,...]}`."""
    indices, values = (b",".join(each) for each in entries)
    return b'{"indices":[%b],"values":[%b]}' % (indices, values)
