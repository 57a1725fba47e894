"""A prompt embedding table as inputs of TensorRT-LLM: requests say its name, operators its file."""

from collections.abc import Mapping
from typing import Any

from openai_frontend.contracts.contract import DeclaredInputs, TensorInput
from openai_frontend.contracts.tensorrt_llm_lora import array_input
from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import GenerationRequest

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
