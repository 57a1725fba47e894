"""LoRA weights and prompt embedding tables as input tensors of TensorRT-LLM."""

from collections.abc import Mapping
from typing import Any

import numpy

from openai_frontend.contracts.contract import DeclaredInputs, TensorInput
from openai_frontend.errors import InvalidRequest, ModelUnavailable
from openai_frontend.generation import GenerationRequest

_ARRAYS = {"FP16": "<f2", "FP32": "<f4", "INT32": "<i4", "INT64": "<i8"}


def lora_weights(request: GenerationRequest, inputs: DeclaredInputs) -> dict[str, TensorInput]:
    """The inputs `lora_weights` and `lora_config`, if the request carries weights.

    Without them it names an adapter that the model has already cached.
    """
    adapter = request.adapter_weights
    if adapter is None:
        return {}
    arrays = {"lora_weights": adapter.weights, "lora_config": adapter.config}
    return {inputs.name(name): array_input(inputs, name, array) for name, array in arrays.items()}


def array_input(inputs: DeclaredInputs, name: str, array: Any) -> TensorInput:
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


ARGUMENT = "prompt_embedding_table"  # the member of `vllm_xargs` and the name of the input


def prompt_table(
    request: GenerationRequest, inputs: DeclaredInputs, tables: Mapping[str, Any]
) -> dict[str, TensorInput]:
    """The table that the request names and its related inputs; empty if it names none."""
    name = (request.sampling_params.extra_args or {}).get(ARGUMENT)
    if name is None:
        return {}
    if name not in tables:
        param = f"vllm_xargs.{ARGUMENT}"
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
    return {inputs.name(ARGUMENT): array_input(inputs, ARGUMENT, table), **numbers}
