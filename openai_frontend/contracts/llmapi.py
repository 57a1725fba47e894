"""The tensors of TensorRT-LLM's LLM-API model, which runs in Triton's python backend. A table."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from openai_frontend.contracts import Vocabulary
from openai_frontend.contracts.tensor_fields import EncodingContext, TensorFields, TensorMap, Values
from openai_frontend.contracts.tensorrt_llm import encode_sampling
from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest
from openai_frontend.media.modalities import ImageSupport

_PROCESSOR = "sampling_param_logits_post_processor_name"


def llmapi(
    config: Mapping[str, Any],
    *,
    tensors: Mapping[str, str] = MappingProxyType({}),
    decoupled: bool,
    vocabulary: Vocabulary | None,
    images: ImageSupport | None = None,
    logits_processors: Collection[str] | None = None,
) -> TensorFields:
    """The contract of one model, without `DerivedOutputs` around it.

    `images` is None if the model would drop them. `logits_processors` are the names that its
    `model.yaml` declares; None if they are unknown.
    """
    tensor_map = _TENSOR_MAP if images is None else replace(_TENSOR_MAP, image_urls="image_url")
    if logits_processors is not None:
        tensor_map = _with_processors(tensor_map, logits_processors)
    return TensorFields(
        config, tensor_map, tensors=tensors, decoupled=decoupled, vocabulary=vocabulary
    )


def _with_processors(tensor_map: TensorMap, names: Collection[str]) -> TensorMap:
    """The map of a model with these processors: a request for another one is a 400."""

    def encode(request: GenerationRequest, values: Values, context: EncodingContext) -> None:
        _encode_custom(request, values, context)
        [name] = values.get(_PROCESSOR, [None])
        if name is not None and name not in names:
            message = (
                f"Invalid 'vllm_xargs.logits_processor': this model has no processor {name!r}; "
                f"use one of {', '.join(sorted(names))}."
            )
            raise InvalidRequest(message, param="vllm_xargs.logits_processor")

    if names:
        return replace(tensor_map, encode_custom=encode)
    arguments = {each: row for each, row in tensor_map.extra_args.items() if row[0] != _PROCESSOR}
    return replace(tensor_map, extra_args=arguments)


def _encode_custom(request: GenerationRequest, values: Values, context: EncodingContext) -> None:
    """Encodes the fields that are not passed unchanged."""
    encode_sampling(request.sampling_params, values, context.inputs, prefix="sampling_param_")
    adapter = request.adapter
    if adapter is not None:
        values["lora_id"] = [adapter.id]
        values["lora_name"] = [adapter.name]
        values["lora_path"] = [str(adapter.path or "")]


_TENSOR_MAP = TensorMap(
    fields={
        each: f"sampling_param_{each}"
        for each in (
            "max_tokens",
            "temperature",
            "top_p",
            "top_k",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "stop",
        )
    },
    custom_fields={
        "adapter": ("lora_id", "lora_name", "lora_path"),
        "adapter_path": ("lora_path",),
    },
    encode_custom=_encode_custom,
    flags=(
        "sampling_param_exclude_input_from_output",
        "return_finish_reason",
        "return_stop_reason",
    ),
    stream="streaming",
    # the model compares a stop string's tokens, and misses it if the answer tokenizes it otherwise
    derives=frozenset({"deltas", "stop"}),
    can_include_stop=False,
    # a constraint plug-in sets `logits_processor` to a name that the model knows
    extra_args={
        "logits_processor": (_PROCESSOR, str),
        "return_perf_metrics": ("sampling_param_return_perf_metrics", bool),
        "return_cumulative_logprob": ("return_cumulative_logprob", bool),
    },
    adds_special_tokens=True,
)
