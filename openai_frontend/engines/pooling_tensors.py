"""Reads the requests for vectors and scores from their tensors, which `tensors.py` lists."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, get_args

from openai_frontend.engines.input_tensors import (
    INT32_BYTES,
    Tensor,
    as_sequence,
    check_count,
    read_cache_salt,
    read_token_ids,
)
from openai_frontend.engines.media import read_images
from openai_frontend.engines.sampling_parameters import read_object
from openai_frontend.pooling import MAX_BATCH_INPUTS, EmbedRequest, PoolingTask, ScorePairRequest
from schemas.sampling import INT32_MAX

# Limit of the JSON documents for embeddings and scores: a token id has up to 10 digits plus one for
# its type; few tokens stand for more than 16 bytes of text.
_DOCUMENT_BYTES, _DOCUMENT_BYTES_PER_TOKEN = 64 * 1024, 16


def read_embeddings(
    inputs: Mapping[str, Tensor], request_id: str, max_model_len: int
) -> list[EmbedRequest]:
    """Return the embedding request that `embedding_request` holds, with `prompt_token_ids` where
    the prompt is not in it; or one for each of the `prompt_lengths`. Raises ValueError, naming the
    tensor.
    """
    document = _read_document(inputs, "embedding_request", max_model_len)
    text, prompts = _read_inputs(inputs, document, "embedding_request", max_model_len)
    cache_salt = read_cache_salt(inputs)
    images = read_images(inputs, cache_salt)
    if images and len(prompts) > 1:
        raise ValueError("prompt_lengths: an input with images must be the only one")
    params = _read_pooling_params(document)
    return [
        EmbedRequest(
            request_id=id,
            prompt=text,
            prompt_token_ids=token_ids,
            images=images,
            cache_salt=cache_salt,
            **params,
        )
        for id, token_ids in zip(_ids(request_id, len(prompts)), prompts, strict=True)
    ]


def read_scores(
    inputs: Mapping[str, Tensor], request_id: str, max_model_len: int
) -> list[ScorePairRequest]:
    """Return the score request that `score_request` holds, with `prompt_token_ids` and
    `token_type_ids` where they are not in it; or one for each of the `prompt_lengths`. Raises
    ValueError, naming the tensor.
    """
    document = _read_document(inputs, "score_request", max_model_len)
    text, prompts = _read_inputs(inputs, document, "score_request", max_model_len)
    if text is not None:
        raise ValueError("score_request: input is not a list of token ids")
    lengths = [len(ids or ()) for ids in prompts]
    types = _read_types(inputs, document, lengths, max_model_len)
    cache_salt = read_cache_salt(inputs)
    return [
        ScorePairRequest(
            request_id=id,
            prompt_token_ids=ids or (),
            token_type_ids=of_ids,
            cache_salt=cache_salt,
        )
        for id, ids, of_ids in zip(_ids(request_id, len(prompts)), prompts, types, strict=True)
    ]


def _ids(request_id: str, count: int) -> Sequence[str]:
    """An engine's request ids."""
    return [request_id] if count == 1 else [f"{request_id}-{at}" for at in range(count)]


def _read_inputs(
    inputs: Mapping[str, Tensor], document: Mapping[str, Any], name: str, max_model_len: int
) -> tuple[str | None, Sequence[Sequence[int] | None]]:
    """A text and no token ids, or no text and the token ids of each input."""
    given = document.get("input")
    if given is None and "prompt_token_ids" in inputs:
        if "prompt_lengths" in inputs:
            return None, _read_batch(inputs, max_model_len)
        return None, [read_token_ids(inputs["prompt_token_ids"], max_model_len)]
    if "prompt_lengths" in inputs:
        raise ValueError(f"prompt_lengths: requires prompt_token_ids and no input in {name}")
    if isinstance(given, str):
        return given, [None]
    if isinstance(given, list):
        return None, [_checked_token_ids(given, f"{name}: input", max_model_len)]
    raise ValueError(f"{name}: input is neither a string nor a list of token ids")


def _read_batch(inputs: Mapping[str, Tensor], max_model_len: int) -> list[Sequence[int]]:
    """The token ids of each input, which follow each other in `prompt_token_ids`."""
    count = inputs["prompt_lengths"].nbytes // INT32_BYTES
    if not 1 <= count <= MAX_BATCH_INPUTS:
        raise ValueError(f"prompt_lengths: from 1 to {MAX_BATCH_INPUTS}, not {count}")
    lengths: list[int] = inputs["prompt_lengths"].tolist()
    for at, length in enumerate(lengths):
        if length < 0:
            raise ValueError(f"prompt_lengths: input[{at}] has a negative length")
        check_count(length, f"input[{at}]", max_model_len)
    return _parts(inputs["prompt_token_ids"], lengths, "prompt_token_ids")


def _parts(tensor: Tensor, lengths: Sequence[int], name: str) -> list[Sequence[int]]:
    count = tensor.nbytes // INT32_BYTES
    if count != sum(lengths):
        raise ValueError(f"{name}: has {count} numbers for inputs of {sum(lengths)} tokens")
    values = as_sequence(tensor)
    bounds = pairwise(accumulate(lengths, initial=0))
    return [values[begin:end] for begin, end in bounds]


def _read_types(
    inputs: Mapping[str, Tensor],
    document: Mapping[str, Any],
    lengths: Sequence[int],
    max_model_len: int,
) -> Sequence[Sequence[int] | None]:
    """The token types of each pair; None without any."""
    if "token_type_ids" in inputs:
        return _parts(inputs["token_type_ids"], lengths, "token_type_ids")
    types = document.get("token_type_ids")
    if types is None:
        return [None] * len(lengths)
    types = _checked_token_ids(types, "score_request: token_type_ids", max_model_len)
    if len(lengths) > 1 or len(types) != lengths[0]:
        raise ValueError("score_request: token_type_ids must have one number per token")
    return [types]


def _read_document(inputs: Mapping[str, Tensor], name: str, max_model_len: int) -> dict[str, Any]:
    max_bytes = _DOCUMENT_BYTES + _DOCUMENT_BYTES_PER_TOKEN * max_model_len
    return read_object(inputs[name].item(), name, max_bytes)


def _checked_token_ids(value: object, name: str, max_model_len: int) -> list[int]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list of token ids")
    check_count(len(value), name, max_model_len)
    if not set(map(type, value)) <= {int} or not all(0 <= each <= INT32_MAX for each in value):
        raise ValueError(f"{name} is not a list of token ids")
    return value


def _read_pooling_params(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of EmbedRequest that the document's `pooling_params` set."""
    pooling = document.get("pooling_params") or {}
    if not isinstance(pooling, dict):
        raise ValueError("embedding_request: pooling_params is not a JSON object")
    task, activation = pooling.get("task", "embed"), pooling.get("use_activation")
    if task not in get_args(PoolingTask):
        raise ValueError(f"embedding_request: task: one of {', '.join(get_args(PoolingTask))}")
    if not (activation is None or isinstance(activation, bool)):
        raise ValueError("embedding_request: use_activation must be true or false")
    dimensions = _read_dimensions(pooling)
    return {"task": task, "use_activation": activation, "dimensions": dimensions}


def _read_dimensions(pooling: Mapping[str, Any]) -> int | None:
    dimensions = pooling.get("dimensions")
    if isinstance(dimensions, list) and len(dimensions) == 1:
        (dimensions,) = dimensions  # NVIDIA's frontend sends a list of one number
    if not (dimensions is None or (type(dimensions) is int and 0 < dimensions <= INT32_MAX)):
        raise ValueError("embedding_request: dimensions must be a positive integer")
    return dimensions
