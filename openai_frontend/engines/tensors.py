"""The tensors of an in-process model: a superset of NVIDIA's vLLM backend, so that its clients and
model repositories work unchanged.

The shared tensors have the same names, datatypes and meanings as in that backend. Additional ones:
`prompt_token_ids`, `return_token_ids`, `count_tokens`, `token_ids`, `stop_reason`,
`num_cached_tokens`, `prompt_logprobs`, `logprob_arrays`, `logprob_tokens`, `logprob_values`,
`priority`, `cache_salt`, `embedding`, `score_request`, `score`, `prompt_lengths`,
`token_type_ids`, `audio`, `audio_file`, `media_info`, `num_image_tokens`, `num_audio_tokens`, and
those of KV transfers, which only the gateway itself may send.
"""

from collections.abc import Mapping
from typing import Any

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
