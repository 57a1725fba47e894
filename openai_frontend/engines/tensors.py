"""The tensors of an in-process model: a superset of NVIDIA's vLLM backend, so that its clients and
repositories fit.

Names, datatypes and meanings of the shared part are that backend's. Added: `prompt_token_ids`,
`return_token_ids`, `token_ids`, `stop_reason`, `num_cached_tokens`, `prompt_logprobs`, `priority`,
`cache_salt`, `embedding`, `score_request`, `score`.
"""

import json
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Protocol, TypeGuard, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, Json, ValidationError, create_model

from openai_frontend.generation import (
    Adapter,
    EmbeddingRequest,
    GenerationRequest,
    SamplingParams,
    ScoreRequest,
    StructuredOutputs,
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
    "return_num_input_tokens": ("TYPE_BOOL", [1]),
    "return_num_output_tokens": ("TYPE_BOOL", [1]),
    "priority": ("TYPE_INT32", [1]),
    "cache_salt": ("TYPE_STRING", [1]),
    "stream_interval": ("TYPE_INT32", [1]),
    "embedding_request": ("TYPE_STRING", [1]),
    "score_request": ("TYPE_STRING", [1]),
}
OUTPUTS: dict[str, tuple[str, list[int]]] = {
    "text_output": ("TYPE_STRING", [1]),
    "token_ids": ("TYPE_INT32", [-1]),
    "finish_reason": ("TYPE_STRING", [1]),
    "stop_reason": ("TYPE_STRING", [1]),
    "logprobs": ("TYPE_STRING", [1]),
    "prompt_logprobs": ("TYPE_STRING", [1]),
    "num_input_tokens": ("TYPE_UINT32", [1]),
    "num_output_tokens": ("TYPE_UINT32", [1]),
    "num_cached_tokens": ("TYPE_UINT32", [1]),
    "embedding": ("TYPE_FP32", [-1]),
    "score": ("TYPE_FP32", [1]),
}

_SHORT_BYTES = 32 * 1024
_NO_ADAPTERS: Mapping[str, Adapter] = MappingProxyType({})

Output = tuple[str, str, tuple[int, ...], bytes | memoryview]


class Tensor(Protocol):
    """An input as the backend gives it."""

    @property
    def nbytes(self) -> int:
        """The size of its memory, which the buffer protocol shows."""

    def item(self) -> Any:
        """The first element."""

    def tolist(self) -> list[Any]:
        """All elements."""


def completed_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the model's config with the tensors above, those that it declares itself kept as
    they are.
    """
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
    adapters: Mapping[str, Adapter] = _NO_ADAPTERS,
    parameters: Callable[[], Mapping[str, Any]] = dict,
) -> GenerationRequest:
    """Return the request that the input tensors hold; `adapters` are those that it may name.

    `parameters` gives the request's own: they stand for the tensor `sampling_parameters` where that
    is absent, as with NVIDIA's backend. Raises ValueError, naming the tensor.
    """
    prompt, token_ids = _read_prompt(inputs)
    sampling_params, lora_name = _read_sampling_parameters(inputs, parameters)
    priority, cache_salt = inputs.get("priority"), inputs.get("cache_salt")
    interval = inputs.get("stream_interval")
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=token_ids,
        sampling_params=sampling_params,
        adapter=None if lora_name is None else _adapter(lora_name, adapters),
        stream=read_flag(inputs, "stream"),
        return_token_ids=read_flag(inputs, "return_token_ids"),
        priority=0 if priority is None else priority.item(),
        cache_salt=None if cache_salt is None else _read_text(cache_salt, "cache_salt"),
        stream_interval=1 if interval is None else interval.item(),
    )


def read_embedding(inputs: Mapping[str, Tensor], request_id: str) -> EmbeddingRequest:
    """Return the embedding request that `embedding_request` holds, and `prompt_token_ids` where
    the prompt is not in it. Raises ValueError, naming the tensor.
    """
    document = _read_json(inputs["embedding_request"], "embedding_request")
    text, token_ids = document.get("input"), None
    if isinstance(text, str):
        pass
    elif text is None and "prompt_token_ids" in inputs:
        token_ids = _read_token_ids(inputs["prompt_token_ids"])
    elif _are_token_ids(text):
        text, token_ids = None, text
    else:
        raise ValueError("embedding_request: input is neither a text nor a list of token ids")
    return EmbeddingRequest(
        request_id=request_id,
        prompt=text,
        prompt_token_ids=token_ids,
        dimensions=_read_dimensions(document),
    )


def read_score(inputs: Mapping[str, Tensor], request_id: str) -> ScoreRequest:
    """Return the score request that `score_request` holds. Raises ValueError, naming the tensor."""
    document = _read_json(inputs["score_request"], "score_request")
    token_ids, types = document.get("input"), document.get("token_type_ids")
    if not _are_token_ids(token_ids):
        raise ValueError("score_request: input is no list of token ids")
    if types is not None and not (_are_token_ids(types) and len(types) == len(token_ids)):
        raise ValueError("score_request: token_type_ids is no list of one number for each token")
    return ScoreRequest(request_id=request_id, prompt_token_ids=token_ids, token_type_ids=types)


def _are_token_ids(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and set(map(type, value)) <= {int} and min(value, default=0) >= 0


def _read_dimensions(document: Mapping[str, Any]) -> int | None:
    pooling = document.get("pooling_params") or {}
    if not isinstance(pooling, dict):
        raise ValueError("embedding_request: pooling_params is not a JSON object")
    dimensions = pooling.get("dimensions")
    if isinstance(dimensions, list) and len(dimensions) == 1:
        (dimensions,) = dimensions  # NVIDIA's frontend wraps the number
    if not (dimensions is None or (type(dimensions) is int and dimensions > 0)):
        raise ValueError("embedding_request: dimensions is not a positive number")
    return dimensions


def read_flag(inputs: Mapping[str, Tensor], name: str) -> bool:
    """Return a BOOL input; one that is absent is false."""
    tensor = inputs.get(name)
    return tensor is not None and bool(tensor.item())


def _read_prompt(inputs: Mapping[str, Tensor]) -> tuple[str | None, Sequence[int] | None]:
    token_ids, text = inputs.get("prompt_token_ids"), inputs.get("text_input")
    if token_ids is not None:
        return None, _read_token_ids(token_ids)
    if text is not None:
        return _read_text(text, "text_input"), None
    raise ValueError("the request has neither text_input nor prompt_token_ids")


def _read_token_ids(tensor: Any) -> Sequence[int]:
    """A list takes 20 ns for each id; of very many they stay as they are."""
    if tensor.nbytes <= _SHORT_BYTES:
        few: list[int] = tensor.tolist()
        return few
    token_ids = array("i")
    token_ids.frombytes(memoryview(tensor).cast("B"))
    return token_ids


def _read_text(tensor: Tensor, name: str) -> str:
    try:
        text: str = tensor.item().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8: {error}") from error
    return text


def _read_json(tensor: Tensor, name: str) -> dict[str, Any]:
    try:
        document = orjson.loads(tensor.item())
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{name} is not a JSON object")
    return document


_STRICT = ConfigDict(strict=True, extra="forbid")


def _wire_model() -> type[BaseModel]:
    """The keys of `sampling_parameters` and the types of their values, from SamplingParams."""
    hints = get_type_hints(SamplingParams)
    # NVIDIA's backend takes this one as JSON within the JSON
    hints["structured_outputs"] = StructuredOutputs | Json[StructuredOutputs] | None
    keys: dict[str, Any] = {
        key.name: (hints[key.name], key.default) for key in fields(SamplingParams)
    }
    keys["lora_name"] = str | None, None
    return create_model("sampling_parameters", __config__=_STRICT, **keys)


_SAMPLING_PARAMETERS = _wire_model()


def _read_sampling_parameters(
    inputs: Mapping[str, Tensor], parameters: Callable[[], Mapping[str, Any]]
) -> tuple[SamplingParams, str | None]:
    """The parameters, and the name of the adapter that they ask for."""
    tensor = inputs.get("sampling_parameters")
    try:
        read: Any = (
            _SAMPLING_PARAMETERS.model_validate(_with_lists(parameters()))
            if tensor is None
            else _SAMPLING_PARAMETERS.model_validate_json(tensor.item())
        )
    except ValidationError as error:
        raise ValueError(f"sampling_parameters{_first_fault(error)}") from error
    given = {name: getattr(read, name) for name in read.model_fields_set if name != "lora_name"}
    return SamplingParams(**given), read.lora_name


def _with_lists(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """A request's parameters are single values: one text is a list of one, where a list is due."""
    stop = parameters.get("stop")
    return {**parameters, "stop": [stop]} if isinstance(stop, str) else parameters


def read_text_before(inputs: Mapping[str, Tensor], request: GenerationRequest) -> str:
    """Return what the answer begins with: the prompt where the request says that it is not to be
    excluded. Raises ValueError where that cannot be.
    """
    excluded = inputs.get("exclude_input_in_output")
    if excluded is None or excluded.item():
        return ""
    if request.stream or request.prompt is None:
        raise ValueError(
            "exclude_input_in_output: it can be false only with text_input, and without stream"
        )
    return request.prompt


def _adapter(name: str, adapters: Mapping[str, Adapter]) -> Adapter:
    """By name alone: what a request says of paths is never looked at."""
    try:
        return adapters[name]
    except KeyError:
        raise ValueError("lora_name: the model has no adapter of that name") from None


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    if fault["type"] == "json_invalid":
        return f" is not JSON: {fault['msg']}"
    if not fault["loc"]:
        return " is not a JSON object"
    return ": ".join(["", *map(str, fault["loc"][:1]), fault["msg"]])


def well_formed(text: str) -> str:
    """Return the text with the surrogates that engines leave joined, and lone ones as U+FFFD: no
    encoding takes them.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def bytes_output(name: str, value: str) -> Output:
    """Return a STRING[1] output."""
    data = well_formed(value).encode()
    return name, "BYTES", (1,), struct.pack("<I", len(data)) + data


def json_output(name: str, value: Any) -> Output:
    """Return a STRING[1] output that holds JSON."""
    return bytes_output(name, json.dumps(value))


def count_output(name: str, count: int) -> Output:
    """Return a UINT32[1] output."""
    return name, "UINT32", (1,), struct.pack("<I", count)


def score_output(score: float) -> Output:
    """Return the FP32[1] output `score`."""
    return "score", "FP32", (1,), struct.pack("<f", score)


def token_ids_output(token_ids: Any) -> Output:
    """Return the INT32[n] output `token_ids`."""
    return "token_ids", "INT32", (len(token_ids),), struct.pack(f"<{len(token_ids)}i", *token_ids)
