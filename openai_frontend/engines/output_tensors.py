"""Writes the outputs of an engine as tensors, which `tensors.py` lists."""

import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from openai_frontend.generation import LogprobArrays, TokenCounts
from openai_frontend.runtime.utf8 import well_formed

# Name, datatype, shape and bytes
Output = tuple[str, str, tuple[int, ...], bytes | memoryview]


def bytes_output(name: str, value: str) -> Output:
    """A STRING[1] output."""
    try:
        data = value.encode()
    except UnicodeEncodeError:
        data = well_formed(value).encode()
    return name, "BYTES", (1,), len(data).to_bytes(4, "little") + data


@lru_cache(maxsize=16)
def finish_reason_output(reason: str) -> Output:
    """The STRING[1] output `finish_reason`, of which there are few."""
    return bytes_output("finish_reason", reason)


def json_output(name: str, value: Any) -> Output:
    """A STRING[1] output that contains JSON."""
    return bytes_output(name, json.dumps(value))


def count_output(name: str, count: int) -> Output:
    """A UINT32[1] output."""
    return name, "UINT32", (1,), count.to_bytes(4, "little")


def counts_output(name: str, counts: Sequence[int]) -> Output:
    """A UINT32[n] output."""
    return name, "UINT32", (len(counts),), struct.pack(f"<{len(counts)}I", *counts)


def transfer_outputs(counts: TokenCounts) -> list[Output]:
    """`num_transferred_tokens` and `kv_transfer_params`, if the engine reports them."""
    outputs = []
    if counts.transferred_tokens is not None:
        outputs.append(count_output("num_transferred_tokens", counts.transferred_tokens))
    if counts.kv_transfer_params is not None:
        outputs.append(json_output("kv_transfer_params", counts.kv_transfer_params))
    return outputs


def float_output(name: str, *values: float) -> Output:
    """An FP32[n] output."""
    return name, "FP32", (len(values),), struct.pack(f"<{len(values)}f", *values)


def vectors_output(name: str, vectors: Sequence[memoryview]) -> Output:
    """An FP32[n] output of vectors that follow each other."""
    data = vectors[0] if len(vectors) == 1 else b"".join(vectors)
    return name, "FP32", (memoryview(data).nbytes // 4,), data


def token_vectors_output(vectors: memoryview, width: int) -> Output:
    """The FP32[tokens, width] output `token_vectors`."""
    return "token_vectors", "FP32", (vectors.nbytes // (4 * width), width), vectors


def token_ids_output(token_ids: Any) -> Output:
    """The INT32[n] output `token_ids`."""
    return "token_ids", "INT32", (len(token_ids),), struct.pack(f"<{len(token_ids)}i", *token_ids)


def logprob_outputs(arrays: LogprobArrays) -> tuple[Output, Output]:
    """The INT32[n, width] output `logprob_tokens` and the FP64[n, width] `logprob_values`."""
    shape = (len(arrays.token_ids), len(arrays.token_ids[0]))
    ids, values = [*chain.from_iterable(arrays.token_ids)], [*chain.from_iterable(arrays.values)]
    return (
        ("logprob_tokens", "INT32", shape, struct.pack(f"<{len(ids)}i", *ids)),
        ("logprob_values", "FP64", shape, struct.pack(f"<{len(values)}d", *values)),
    )
