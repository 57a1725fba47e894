"""LoRA weights and prompt embedding tables as input tensors of TensorRT-LLM."""

from collections.abc import Mapping
from typing import Any

import numpy

from openai_frontend.contracts.contract import DeclaredInputs, TensorInput
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.generation import GenerationRequest

_ARRAYS = {"FP16": "<f2", "FP32": "<f4", "INT32": "<i4", "INT64": "<i8"}


def lora_weights(request: GenerationRequest, inputs: DeclaredInputs) -> dict[str, TensorInput]:
    """The inputs `lora_weights` and `lora_config`, where the request has what to tell; a request
    without them names an adapter that the model has from before.
    """
    told = request.adapter_weights
    if told is None:
        return {}
    arrays = {"lora_weights": told.weights, "lora_config": told.config}
    return {inputs.name(name): array_input(inputs, name, array) for name, array in arrays.items()}


def array_input(inputs: DeclaredInputs, name: str, array: Any) -> TensorInput:
    """In the declared datatype, with as many dimensions as are declared: those in front have one
    element.
    """
    datatype, rank = inputs.datatype(name), inputs.rank(name)
    shape = (1,) * (rank - array.ndim) + array.shape[max(0, array.ndim - rank) :]
    if numpy.prod(shape) != array.size:
        raise ModelUnavailable(f"The array for {name} does not fit the model's input.")
    return datatype, shape, _converted(array, datatype).tobytes()


def _converted(array: Any, datatype: str) -> Any:
    bfloat16 = array.dtype.kind == "V" and array.dtype.itemsize == 2  # numpy has no such type
    if datatype == "BF16":
        return array if bfloat16 else _to_bfloat16(array)
    return (_from_bfloat16(array) if bfloat16 else array).astype(_ARRAYS[datatype], copy=False)


def _from_bfloat16(array: Any) -> Any:
    return (array.view("<u2").astype("<u4") << 16).view("<f4")


def _to_bfloat16(array: Any) -> Any:
    """The upper half of a float32, rounded to the nearest, to the even one of two."""
    bits = array.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


ARGUMENT = "prompt_embedding_table"  # of `vllm_xargs`, and the input that takes the table


def prompt_table(
    request: GenerationRequest, inputs: DeclaredInputs, tables: Mapping[str, Any]
) -> dict[str, TensorInput]:
    """The table that the request names, and what goes with it; nothing where it names none."""
    name = (request.sampling_params.extra_args or {}).get(ARGUMENT)
    if name is None:
        return {}
    if name not in tables:
        param = f"vllm_xargs.{ARGUMENT}"
        known = ", ".join(f"'{each}'" for each in sorted(tables))
        message = f"Invalid value for '{param}'. Supported values are: {known}."
        raise InvalidRequest(message, param=param, code="invalid_value")
    table = tables[name]
    beside = {
        "prompt_vocab_size": len(table),
        # keeps the prefixes of prompts apart that have different tables
        "prompt_table_extra_id": sorted(tables).index(name) + 1,
    }
    numbers = {
        inputs.name(each): inputs.tensor(each, [value])
        for each, value in beside.items()
        if each in inputs
    }
    return {inputs.name(ARGUMENT): array_input(inputs, ARGUMENT, table), **numbers}
