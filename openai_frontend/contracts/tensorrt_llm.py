"""The tensors of TensorRT-LLM's pipelines, `ensemble` and `tensorrt_llm_bls`: a table, and the
LoRA weights and prompt embedding tables that are sent as arrays.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy
import orjson

from openai_frontend.contracts import DeclaredInputs, TensorInput, Vocabulary
from openai_frontend.contracts.tensor_fields import EncodingContext, TensorFields, TensorMap, Values
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.generation import GenerationRequest, SamplingParams, StructuredOutputs
from openai_frontend.media.modalities import ImageSupport

_GUIDE = ("guided_decoding_guide_type", "guided_decoding_guide")
_TABLE_ARGUMENT = "prompt_embedding_table"  # the member of `vllm_xargs` and the name of the input
_ARRAYS = {"FP16": "<f2", "FP32": "<f4", "INT32": "<i4", "INT64": "<i8"}


def tensorrt_llm(
    config: Mapping[str, Any],
    *,
    tensors: Mapping[str, str] = MappingProxyType({}),
    decoupled: bool,
    vocabulary: Vocabulary | None,
    prompt_embedding_tables: Mapping[str, Any] = MappingProxyType({}),
    images: ImageSupport | None = None,
) -> TensorFields:
    """The contract of one pipeline, without `DerivedOutputs` around it.

    `images` is None if the pipeline would drop them.
    """
    tensor_map = _ACCUMULATING if _accumulates(config) else _TENSOR_MAP
    if images is not None:
        tensor_map = _with_images(tensor_map, images)
    if prompt_embedding_tables:
        tensor_map = _with_tables(tensor_map, prompt_embedding_tables)
    return TensorFields(
        config, tensor_map, tensors=tensors, decoupled=decoupled, vocabulary=vocabulary
    )


def _with_tables(tensor_map: TensorMap, tables: Mapping[str, Any]) -> TensorMap:
    """The map of a pipeline with prompt tables that requests can name."""

    def arrays(request: GenerationRequest, inputs: DeclaredInputs) -> dict[str, TensorInput]:
        return {
            **_lora_weights(request, inputs),
            **_prompt_table(request, inputs, tables),
        }

    arguments = {**tensor_map.extra_args, _TABLE_ARGUMENT: (_TABLE_ARGUMENT, str)}
    return replace(tensor_map, encode_arrays=arrays, extra_args=arguments)


def _with_images(tensor_map: TensorMap, images: ImageSupport) -> TensorMap:
    """The map of a pipeline with a vision model.

    Its preprocessing decodes only URLs with this MIME type, whatever the format. It fetches others.
    """
    encode = _encode_table_id if images.needs_table_id else tensor_map.encode_custom
    return replace(
        tensor_map,
        image_urls="image_url_input",
        image_mime_type="image/jpeg",
        encode_custom=encode,
    )


def _encode_table_id(request: GenerationRequest, values: Values, context: EncodingContext) -> None:
    """Besides `_encode_custom`, an id of the images: prompts with different ones must not share
    cached prefixes, in which each image has the same token ids.
    """
    _encode_custom(request, values, context)
    if request.images:
        digests = ",".join(image.digest for image in request.images)
        name = hashlib.sha256(f"{request.cache_salt or ''}:{digests}".encode()).digest()
        values["prompt_table_extra_id"] = [int.from_bytes(name[:8], "little") >> 1 or 1]


def _encode_custom(request: GenerationRequest, values: Values, context: EncodingContext) -> None:
    """Encodes the fields that are not passed unchanged."""
    values.pop(_TABLE_ARGUMENT, None)  # the table itself is sent as an array
    params = request.sampling_params
    encode_sampling(params, values, context.inputs)
    if params.ignore_eos:
        values["end_id"] = [-1]  # no token has this id
    if params.bad_words:  # a word has other tokens after a space
        values["bad_words"] = [form for word in params.bad_words for form in (word, f" {word}")]
    if params.logprobs is not None:
        values["return_log_probs"] = [True]
    if params.logit_bias and context.vocabulary is not None:
        _encode_bias(params.logit_bias, values, context.vocabulary)
    if params.structured_outputs is not None:
        kind, guide = _guide(params.structured_outputs, request.field_names)
        values["guided_decoding_guide_type"] = [kind]
        values["guided_decoding_guide"] = [guide]
    if params.beam_width is not None or values.get("num_draft_tokens", [0])[0]:
        values["stream"] = [False]  # neither can be streamed
    if request.adapter is not None:
        values["lora_task_id"] = [request.adapter.id]


def _encode_bias(bias: Mapping[int, float], values: Values, vocabulary: Vocabulary) -> None:
    """The model takes words and applies the weight to each of their tokens."""
    words = [_word(token_id, vocabulary) for token_id in bias]
    # Its tokenizer adds BOS to each word; the empty word takes that bias from BOS again.
    values["embedding_bias_words"] = [*words, ""]
    values["embedding_bias_weights"] = [*bias.values(), -sum(bias.values())]


def _word(token_id: int, vocabulary: Vocabulary) -> str:
    text = vocabulary.token_text(token_id)
    if not text or list(vocabulary.ids(text)) != [token_id]:
        message = f"Invalid 'logit_bias': token {token_id} cannot be sent to this model as text."
        raise InvalidRequest(message, param="logit_bias")
    return text


def _guide(constraint: StructuredOutputs, names: Mapping[str, str]) -> tuple[str, str]:
    """The guide's type and text. White space cannot be configured."""
    if constraint.json is not None:
        schema = constraint.json
        return "json_schema", schema if isinstance(schema, str) else orjson.dumps(schema).decode()
    if constraint.regex is not None:
        return "regex", constraint.regex
    if constraint.choice is not None:
        quoted = (json.dumps(choice, ensure_ascii=False) for choice in constraint.choice)
        return "ebnf_grammar", "root ::= " + " | ".join(quoted)
    if constraint.grammar is not None:
        if "::=" not in constraint.grammar:
            raise _not_ebnf(names.get("structured_outputs", "structured_outputs"))
        return "ebnf_grammar", constraint.grammar
    return "json", ""


def _not_ebnf(param: str) -> InvalidRequest:
    message = f"Invalid '{param}': this model takes grammars as EBNF ('root ::= ...'), not as Lark."
    return InvalidRequest(message, param=param)


def _lora_weights(request: GenerationRequest, inputs: DeclaredInputs) -> dict[str, TensorInput]:
    """The inputs `lora_weights` and `lora_config`, if the request carries weights.

    Without them it names an adapter that the model has already cached.
    """
    adapter = request.adapter_weights
    if adapter is None:
        return {}
    arrays = {"lora_weights": adapter.weights, "lora_config": adapter.config}
    return {inputs.name(name): _array_input(inputs, name, array) for name, array in arrays.items()}


def _array_input(inputs: DeclaredInputs, name: str, array: Any) -> TensorInput:
    """The array in the declared datatype and rank; leading dimensions have one element."""
    datatype, rank = inputs.datatype(name), inputs.rank(name)
    shape = (1,) * (rank - array.ndim) + array.shape[max(0, array.ndim - rank) :]
    if numpy.prod(shape) != array.size:
        raise ModelUnavailable(f"The array for {name} does not fit the model's input.")
    return datatype, shape, _converted(array, datatype).tobytes()


def _converted(array: Any, datatype: str) -> Any:
    bfloat16 = array.dtype.kind == "V" and array.dtype.itemsize == 2  # numpy lacks bfloat16
    if datatype == "BF16":
        return array if bfloat16 else _to_bfloat16(array)
    return (_from_bfloat16(array) if bfloat16 else array).astype(_ARRAYS[datatype], copy=False)


def _from_bfloat16(array: Any) -> Any:
    return (array.view("<u2").astype("<u4") << 16).view("<f4")


def _to_bfloat16(array: Any) -> Any:
    """The upper half of a float32, rounded to nearest, ties to even."""
    bits = array.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _prompt_table(
    request: GenerationRequest, inputs: DeclaredInputs, tables: Mapping[str, Any]
) -> dict[str, TensorInput]:
    """The table that the request names and its related inputs; empty if it names none."""
    name = (request.sampling_params.extra_args or {}).get(_TABLE_ARGUMENT)
    if name is None:
        return {}
    if name not in tables:
        param = f"vllm_xargs.{_TABLE_ARGUMENT}"
        known = ", ".join(f"'{each}'" for each in sorted(tables))
        message = f"Invalid value for '{param}'. Supported values are: {known}."
        raise InvalidRequest(message, param=param, code="invalid_value")
    table = tables[name]
    scalars = {
        "prompt_vocab_size": len(table),
        # separates cached prefixes of prompts with different tables
        "prompt_table_extra_id": sorted(tables).index(name) + 1,
    }
    numbers = {
        inputs.name(each): inputs.tensor(each, [value])
        for each, value in scalars.items()
        if each in inputs
    }
    return {inputs.name(_TABLE_ARGUMENT): _array_input(inputs, _TABLE_ARGUMENT, table), **numbers}


def _accumulates(config: Mapping[str, Any]) -> bool:
    """Whether the BLS model sends the complete text so far with each response."""
    parameter = config.get("parameters", {}).get("accumulate_tokens", {})
    return str(parameter.get("string_value", "")).lower() in ("true", "yes", "1", "t")


_SAME_NAME = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "beam_width", "length_penalty", "seed", "bad_words",
)  # fmt: skip

_CUSTOM_FIELDS = {
    "ignore_eos": ("end_id",),
    "logprobs": ("return_log_probs",),
    "logit_bias": ("embedding_bias_words", "embedding_bias_weights"),
    "structured_outputs": _GUIDE,
    **{
        f"structured_outputs.{kind}": _GUIDE
        for kind in ("json", "json_object", "regex", "choice", "grammar")
    },
    "adapter": ("lora_task_id",),
    "adapter_weights": ("lora_task_id", "lora_weights", "lora_config"),
}

# Inputs that clients set by name in `vllm_xargs`
_EXTRA_ARGS = {
    "early_stopping": int,
    "end_id": int,
    "pad_id": int,
    "num_draft_tokens": int,
    "use_draft_logits": bool,
    "return_perf_metrics": bool,
    "return_context_logits": bool,
    "return_generation_logits": bool,
}


def _tensor_map(*derives: str) -> TensorMap:
    return TensorMap(
        fields={"stop": "stop_words", **{name: name for name in _SAME_NAME}},
        custom_fields=_CUSTOM_FIELDS,
        encode_custom=_encode_custom,
        encode_arrays=_lora_weights,
        required_outputs={"logprobs": "output_log_probs"},
        flags=("exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens"),
        exclude_prompt_flag="exclude_input_in_output",
        logprobs_output="output_log_probs",
        derives=frozenset({"finish_reason", "stop", "logprobs", *derives}),
        needs_vocabulary=frozenset({"logit_bias", "logprobs"}),
        extra_args={name: (name, kind) for name, kind in _EXTRA_ARGS.items()},
        adds_special_tokens=True,
    )


_TENSOR_MAP = _tensor_map()
_ACCUMULATING = _tensor_map("deltas")


def encode_sampling(
    params: SamplingParams, values: Values, declared: DeclaredInputs, *, prefix: str = ""
) -> None:
    """Sampling inputs. TensorRT-LLM is greedy unless top_k or top_p is set."""
    temperature, top_k, top_p = (f"{prefix}{name}" for name in ("temperature", "top_k", "top_p"))
    if params.seed is not None:
        values[f"{prefix}seed"] = [params.seed % 2**64]
    if params.top_k is not None:
        values[top_k] = [max(params.top_k, 0)]  # all tokens
    if params.temperature == 0 and top_k in declared:
        del values[temperature]
        values[top_k] = [1]
    elif params.temperature and params.top_p is None and not values.get(top_k, [0])[0]:
        values[top_p] = [1.0]
