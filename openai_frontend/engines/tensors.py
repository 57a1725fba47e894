"""The tensors of an in-process model: a superset of NVIDIA's vLLM backend, so that its clients and
model repositories work unchanged.

The shared tensors have the same names, datatypes and meanings as in that backend. Additional ones:
`prompt_token_ids`, `return_token_ids`, `count_tokens`, `token_ids`, `stop_reason`,
`num_cached_tokens`, `prompt_logprobs`, `logprob_arrays`, `logprob_tokens`, `logprob_values`,
`priority`, `cache_salt`, `embedding`, `score_request`, `score`, `prompt_lengths`,
`token_type_ids`, `audio`, `audio_file`, `media_info`, `num_image_tokens`, `num_audio_tokens`, and
those of KV transfers, which only the gateway itself may send.
"""

import json
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from types import MappingProxyType
from typing import Any, Protocol, get_args

from openai_frontend.engines import sampling_parameters
from openai_frontend.engines.engine import EngineError
from openai_frontend.engines.media import read_audio, read_audio_files, read_images
from openai_frontend.engines.sampling_parameters import read_object
from openai_frontend.generation import (
    Adapter,
    GenerationRequest,
    KVTransfer,
    LogprobArrays,
    SamplingParams,
    TokenCounts,
    UsageCounter,
)
from openai_frontend.pooling import MAX_BATCH_INPUTS, EmbedRequest, PoolingTask, ScorePairRequest
from openai_frontend.runtime.utf8 import well_formed
from openai_frontend.triton import error_codes
from schemas.sampling import (
    INT32_MAX,
    MAX_CACHE_SALT_CHARACTERS,
    MAX_STREAM_INTERVAL,
    OWNER_CHARACTERS,
)

# name -> (datatype in config.pbtxt, dims)
INPUTS: dict[str, tuple[str, list[int]]] = {
    "text_input": ("TYPE_STRING", [1]),
    "prompt_token_ids": ("TYPE_INT32", [-1]),
    "stream": ("TYPE_BOOL", [1]),
    "sampling_parameters": ("TYPE_STRING", [1]),
    "exclude_input_in_output": ("TYPE_BOOL", [1]),
    "return_finish_reason": ("TYPE_BOOL", [1]),
    "return_logprobs": ("TYPE_BOOL", [1]),
    "return_token_ids": ("TYPE_BOOL", [1]),
    "count_tokens": ("TYPE_BOOL", [1]),
    "return_num_input_tokens": ("TYPE_BOOL", [1]),
    "return_num_output_tokens": ("TYPE_BOOL", [1]),
    "priority": ("TYPE_INT32", [1]),
    "cache_salt": ("TYPE_STRING", [1]),
    "stream_interval": ("TYPE_INT32", [1]),
    "kv_transfer": ("TYPE_STRING", [1]),
    "logprob_arrays": ("TYPE_BOOL", [1]),
    "embedding_request": ("TYPE_STRING", [1]),
    "score_request": ("TYPE_STRING", [1]),
    "prompt_lengths": ("TYPE_INT32", [-1]),
    "token_type_ids": ("TYPE_INT32", [-1]),
    "image": ("TYPE_STRING", [-1]),
    "audio_file": ("TYPE_STRING", [-1]),
    "audio": ("TYPE_FP32", [-1]),
    "media_info": ("TYPE_STRING", [1]),
}
OUTPUTS: dict[str, tuple[str, list[int]]] = {
    "text_output": ("TYPE_STRING", [1]),
    "token_ids": ("TYPE_INT32", [-1]),
    "finish_reason": ("TYPE_STRING", [1]),
    "stop_reason": ("TYPE_STRING", [1]),
    "logprobs": ("TYPE_STRING", [1]),
    "prompt_logprobs": ("TYPE_STRING", [1]),
    "logprob_tokens": ("TYPE_INT32", [-1, -1]),
    "logprob_values": ("TYPE_FP64", [-1, -1]),
    "num_input_tokens": ("TYPE_UINT32", [-1]),
    "num_output_tokens": ("TYPE_UINT32", [1]),
    "num_cached_tokens": ("TYPE_UINT32", [1]),
    "num_transferred_tokens": ("TYPE_UINT32", [1]),
    "kv_transfer_params": ("TYPE_STRING", [1]),
    "num_image_tokens": ("TYPE_UINT32", [1]),
    "num_audio_tokens": ("TYPE_UINT32", [1]),
    "first_token_latency": ("TYPE_FP32", [1]),
    "embedding": ("TYPE_FP32", [-1]),
    "token_vectors": ("TYPE_FP32", [-1, -1]),
    "score": ("TYPE_FP32", [-1]),
}

_FEW_BYTES = 1024
_INT32_BYTES = 4
# Limit of the JSON documents for embeddings and scores: a token id has up to 10 digits plus one for
# its type; few tokens stand for more than 16 bytes of text.
_DOCUMENT_BYTES, _DOCUMENT_BYTES_PER_TOKEN = 64 * 1024, 16
_TRANSFER_BYTES = 4 * 1024 * 1024  # it has the number of each block of the prompt
_NO_ADAPTERS: Mapping[str, Adapter] = MappingProxyType({})
_NOT_COUNTED = UsageCounter()  # the caller counts what the engine sends

Output = tuple[str, str, tuple[int, ...], bytes | memoryview]


class Tensor(Protocol):
    """An input tensor, as the backend provides it."""

    @property
    def nbytes(self) -> int:
        """Size in bytes of the buffer."""

    def item(self) -> Any: ...

    def tolist(self) -> list[Any]: ...


def completed_config(config: dict[str, Any]) -> dict[str, Any]:
    """Add the tensors above to a model's config. Tensors that it declares itself stay unchanged."""
    return {
        **config,
        "input": _completed(config.get("input", []), INPUTS, optional=True),
        "output": _completed(config.get("output", []), OUTPUTS, optional=False),
        "model_transaction_policy": {"decoupled": True},
    }


def _completed(
    declared: list[dict[str, Any]], table: Mapping[str, tuple[str, list[int]]], *, optional: bool
) -> list[dict[str, Any]]:
    names = {tensor["name"] for tensor in declared}
    added = [
        {"name": name, "data_type": data_type, "dims": dims}
        | ({"optional": True} if optional else {})
        for name, (data_type, dims) in table.items()
        if name not in names
    ]
    return declared + added


def read_generation(
    inputs: Mapping[str, Tensor],
    request_id: str,
    max_model_len: int,
    adapters: Mapping[str, Adapter] = _NO_ADAPTERS,
    parameters: Callable[[], Mapping[str, Any]] = dict,
) -> GenerationRequest:
    """Decode a generation request for a model with `max_model_len` tokens of context.

    `adapters` are the ones that the request may name. `parameters` returns the request's own
    parameters, which replace the tensor `sampling_parameters` if it is absent, as in NVIDIA's
    backend. Raises ValueError, naming the tensor.
    """
    prompt, token_ids = _read_prompt(inputs, max_model_len)
    sampling_params, lora_name = _read_sampling_parameters(inputs, parameters)
    priority, transfer = inputs.get("priority"), inputs.get("kv_transfer")
    cache_salt = _read_cache_salt(inputs)
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=token_ids,
        images=read_images(inputs, cache_salt),
        audio_files=read_audio_files(inputs, cache_salt) if "audio_file" in inputs else (),
        audio=read_audio(inputs, cache_salt) if "audio" in inputs else None,
        sampling_params=sampling_params,
        adapter=None if lora_name is None else _adapter(lora_name, adapters),
        stream=read_flag(inputs, "stream"),
        return_token_ids=read_flag(inputs, "return_token_ids"),
        count_tokens=read_flag(inputs, "count_tokens"),
        logprob_arrays=read_flag(inputs, "logprob_arrays"),
        priority=0 if priority is None else priority.item(),
        cache_salt=cache_salt,
        stream_interval=_read_stream_interval(inputs),
        usage=_NOT_COUNTED,
        kv_transfer=None if transfer is None else _read_transfer(transfer),
    )


def read_embeddings(
    inputs: Mapping[str, Tensor], request_id: str, max_model_len: int
) -> list[EmbedRequest]:
    """Return the embedding request that `embedding_request` holds, with `prompt_token_ids` where
    the prompt is not in it; or one for each of the `prompt_lengths`. Raises ValueError, naming the
    tensor.
    """
    document = _read_document(inputs, "embedding_request", max_model_len)
    text, prompts = _read_inputs(inputs, document, "embedding_request", max_model_len)
    cache_salt = _read_cache_salt(inputs)
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
    cache_salt = _read_cache_salt(inputs)
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
        return None, [_read_token_ids(inputs["prompt_token_ids"], max_model_len)]
    if "prompt_lengths" in inputs:
        raise ValueError(f"prompt_lengths: requires prompt_token_ids and no input in {name}")
    if isinstance(given, str):
        return given, [None]
    if isinstance(given, list):
        return None, [_checked_token_ids(given, f"{name}: input", max_model_len)]
    raise ValueError(f"{name}: input is neither a string nor a list of token ids")


def _read_batch(inputs: Mapping[str, Tensor], max_model_len: int) -> list[Sequence[int]]:
    """The token ids of each input, which follow each other in `prompt_token_ids`."""
    count = inputs["prompt_lengths"].nbytes // _INT32_BYTES
    if not 1 <= count <= MAX_BATCH_INPUTS:
        raise ValueError(f"prompt_lengths: from 1 to {MAX_BATCH_INPUTS}, not {count}")
    lengths: list[int] = inputs["prompt_lengths"].tolist()
    for at, length in enumerate(lengths):
        if length < 0:
            raise ValueError(f"prompt_lengths: input[{at}] has a negative length")
        _check_count(length, f"input[{at}]", max_model_len)
    return _parts(inputs["prompt_token_ids"], lengths, "prompt_token_ids")


def _parts(tensor: Tensor, lengths: Sequence[int], name: str) -> list[Sequence[int]]:
    count = tensor.nbytes // _INT32_BYTES
    if count != sum(lengths):
        raise ValueError(f"{name}: has {count} numbers for inputs of {sum(lengths)} tokens")
    values = _listed(tensor)
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
    _check_count(len(value), name, max_model_len)
    if not set(map(type, value)) <= {int} or not all(0 <= each <= INT32_MAX for each in value):
        raise ValueError(f"{name} is not a list of token ids")
    return value


def _check_count(count: int, name: str, max_model_len: int) -> None:
    if count > max_model_len:
        raise ValueError(
            f"{name}: {count} tokens exceed the model's context length of {max_model_len}"
        )


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


def read_flag(inputs: Mapping[str, Tensor], name: str) -> bool:
    """Return a BOOL input; False if it is absent."""
    return name in inputs and bool(inputs[name].item())


def _read_prompt(
    inputs: Mapping[str, Tensor], max_model_len: int
) -> tuple[str | None, Sequence[int] | None]:
    token_ids, text = inputs.get("prompt_token_ids"), inputs.get("text_input")
    if token_ids is not None:
        return None, _read_token_ids(token_ids, max_model_len)
    if text is not None:
        return _read_text(text, "text_input"), None
    raise ValueError("the request needs text_input or prompt_token_ids")


def _read_token_ids(tensor: Any, max_model_len: int) -> Sequence[int]:
    _check_count(tensor.nbytes // _INT32_BYTES, "prompt_token_ids", max_model_len)
    return _listed(tensor)


def _listed(tensor: Any) -> Sequence[int]:
    """A list costs 20 ns per id, so more than a few stay an array."""
    if tensor.nbytes < _FEW_BYTES:
        few: list[int] = tensor.tolist()
        return few
    token_ids = array("i")
    token_ids.frombytes(memoryview(tensor).cast("B"))
    return token_ids


def _read_cache_salt(inputs: Mapping[str, Tensor]) -> str | None:
    if (tensor := inputs.get("cache_salt")) is None:
        return None
    salt = _read_text(tensor, "cache_salt")
    if len(salt) > MAX_CACHE_SALT_CHARACTERS + OWNER_CHARACTERS:
        raise ValueError(
            f"cache_salt: at most {MAX_CACHE_SALT_CHARACTERS} characters, not {len(salt)}"
        )
    return salt


def _read_stream_interval(inputs: Mapping[str, Tensor]) -> int:
    if (tensor := inputs.get("stream_interval")) is None:
        return 1
    interval: int = tensor.item()
    if not 1 <= interval <= MAX_STREAM_INTERVAL:
        raise ValueError(f"stream_interval: from 1 to {MAX_STREAM_INTERVAL}, not {interval}")
    return interval


def _read_transfer(tensor: Tensor) -> KVTransfer:
    return KVTransfer(**read_object(tensor.item(), "kv_transfer", _TRANSFER_BYTES))


def _read_text(tensor: Tensor, name: str) -> str:
    try:
        text: str = tensor.item().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8: {error}") from error
    return text


def _read_sampling_parameters(
    inputs: Mapping[str, Tensor], parameters: Callable[[], Mapping[str, Any]]
) -> tuple[SamplingParams, str | None]:
    """The parameters and the name of the LoRA adapter that they select."""
    tensor = inputs.get("sampling_parameters")
    if tensor is None:
        return sampling_parameters.read(parameters())
    return sampling_parameters.read_text(tensor.item())


def read_text_before(inputs: Mapping[str, Tensor], request: GenerationRequest) -> str:
    """Return the prompt if `exclude_input_in_output` is false, else "".

    Raises ValueError if the prompt cannot be returned.
    """
    excluded = inputs.get("exclude_input_in_output")
    if excluded is None or excluded.item():
        return ""
    if request.stream or request.prompt is None:
        raise ValueError("exclude_input_in_output: false requires text_input and no streaming")
    return request.prompt


def _adapter(name: str, adapters: Mapping[str, Adapter]) -> Adapter:
    """Looks up by name only: paths in the request are ignored. The adapter of a valid request may
    have been unloaded since.
    """
    try:
        return adapters[name]
    except KeyError:
        message = "lora_name: the model has no adapter with that name"
        raise EngineError(message, error_codes.NOT_FOUND) from None


def bytes_output(name: str, value: str) -> Output:
    """A STRING[1] output."""
    try:
        data = value.encode()
    except UnicodeEncodeError:
        data = well_formed(value).encode()
    return name, "BYTES", (1,), len(data).to_bytes(4, "little") + data


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
