"""Model configs as Triton reports them, and responses as its backends send them."""

from typing import Any

import numpy as np


def tensors(declared: str) -> list[dict[str, Any]]:
    """Tensor declarations of a model's config, from words such as "text_input:STRING"."""
    pairs = (word.split(":") for word in declared.split())
    return [{"name": name, "data_type": f"TYPE_{kind}", "dims": [1]} for name, kind in pairs]


NVIDIA_VLLM = {
    "backend": "vllm",
    "max_batch_size": 0,
    "input": tensors(
        """
        text_input:STRING image:STRING stream:BOOL sampling_parameters:STRING
        exclude_input_in_output:BOOL return_finish_reason:BOOL
        return_cumulative_logprob:BOOL return_logprobs:BOOL return_num_input_tokens:BOOL
        return_num_output_tokens:BOOL embedding_request:STRING
        """
    ),
    "output": tensors(
        """
        text_output:STRING finish_reason:STRING cumulative_logprob:FP32 logprobs:STRING
        num_input_tokens:UINT32 num_output_tokens:UINT32
        """
    ),
}

INPROCESS = {
    "backend": "inprocess",
    "max_batch_size": 0,
    "input": tensors(
        """
        text_input:STRING prompt_token_ids:INT32 stream:BOOL sampling_parameters:STRING
        return_logprobs:BOOL return_token_ids:BOOL count_tokens:BOOL return_num_input_tokens:BOOL
        return_num_output_tokens:BOOL return_finish_reason:BOOL
        exclude_input_in_output:BOOL priority:INT32 cache_salt:STRING
        stream_interval:INT32 embedding_request:STRING score_request:STRING
        prompt_lengths:INT32 token_type_ids:INT32
        """
    ),
    "output": tensors(
        """
        text_output:STRING token_ids:INT32 finish_reason:STRING stop_reason:STRING
        num_input_tokens:UINT32 num_output_tokens:UINT32 num_cached_tokens:UINT32
        first_token_latency:FP32 logprobs:STRING prompt_logprobs:STRING embedding:FP32 score:FP32
        """
    ),
}


class RecordedOutputs:
    """A response with the methods of the native one, over plain Python values."""

    def __init__(self, final: bool = False, relayed: int = 0, **values: Any) -> None:
        self.final = final
        self.relayed = relayed
        self._values = values

    def item(self, name: str) -> Any:
        value = self._values.get(name)
        return value[0] if isinstance(value, list) else value

    def tolist(self, name: str) -> list[Any] | None:
        value = self._values.get(name)
        return value if value is None or isinstance(value, list) else [value]

    def tensor(self, name: str) -> Any:
        return self._values.get(name)


def _declared(
    required: str, optional: str, *, dims: dict[str, list[int]] | None = None
) -> list[dict[str, Any]]:
    """Inputs in the form of a config, some of them optional, most of them with one element."""
    given = [*tensors(required), *({**each, "optional": True} for each in tensors(optional))]
    return [{**each, "dims": (dims or {}).get(each["name"], [1])} for each in given]


_PERF_METRICS = """
    kv_cache_alloc_new_blocks:INT32 kv_cache_reused_blocks:INT32 kv_cache_alloc_total_blocks:INT32
    arrival_time_ns:INT64 first_scheduled_time_ns:INT64 first_token_time_ns:INT64
    last_token_time_ns:INT64 acceptance_rate:FP32 total_accepted_draft_tokens:INT32
    total_draft_tokens:INT32
"""

_MANY = ("bad_words", "stop_words", "embedding_bias_words", "embedding_bias_weights")

ENSEMBLE: dict[str, Any] = {
    "platform": "ensemble",
    "max_batch_size": 64,
    "model_transaction_policy": {"decoupled": True},
    "input": _declared(
        "text_input:STRING max_tokens:INT32",
        """
        decoder_text_input:STRING num_return_sequences:INT32 bad_words:STRING stop_words:STRING
        exclude_input_in_output:BOOL end_id:INT32 pad_id:INT32 top_k:INT32 top_p:FP32
        temperature:FP32 length_penalty:FP32 repetition_penalty:FP32 min_tokens:INT32
        presence_penalty:FP32 frequency_penalty:FP32 seed:UINT64 return_log_probs:BOOL
        return_context_logits:BOOL return_generation_logits:BOOL return_perf_metrics:BOOL
        return_num_input_tokens:BOOL return_num_output_tokens:BOOL beam_width:INT32 stream:BOOL
        prompt_embedding_table:FP16 prompt_table_extra_id:UINT64 prompt_vocab_size:INT32
        embedding_bias_words:STRING embedding_bias_weights:FP32 lora_task_id:UINT64
        lora_weights:FP16 lora_config:INT32 guided_decoding_guide_type:STRING
        guided_decoding_guide:STRING
        """,
        dims={name: [-1] for name in _MANY}
        | {"prompt_embedding_table": [-1, -1], "lora_weights": [-1, -1], "lora_config": [-1, 3]},
    ),
    "output": tensors(
        f"""
        text_output:STRING cum_log_probs:FP32 output_log_probs:FP32 context_logits:FP32
        generation_logits:FP32 batch_index:INT32 sequence_index:INT32 {_PERF_METRICS}
        num_input_tokens:INT32 num_output_tokens:INT32
        """
    ),
}

# BLS has more inputs than the ensemble and can be set to detokenize all tokens in each response
BLS: dict[str, Any] = {
    **{name: value for name, value in ENSEMBLE.items() if name != "platform"},
    "backend": "python",
    "input": [*ENSEMBLE["input"], *_declared("", "num_draft_tokens:INT32 use_draft_logits:BOOL")],
}
ACCUMULATING_BLS = {**BLS, "parameters": {"accumulate_tokens": {"string_value": "true"}}}

LLMAPI: dict[str, Any] = {
    "backend": "python",
    "max_batch_size": 0,
    "model_transaction_policy": {"decoupled": False},
    "input": _declared(
        "text_input:STRING",
        """
        image_url:STRING streaming:BOOL sampling_param_best_of:INT32
        sampling_param_temperature:FP32 sampling_param_top_k:INT32 sampling_param_top_p:FP32
        sampling_param_frequency_penalty:FP32 sampling_param_presence_penalty:FP32
        sampling_param_max_tokens:INT32 sampling_param_stop:STRING sampling_param_seed:UINT64
        sampling_param_exclude_input_from_output:BOOL sampling_param_return_perf_metrics:BOOL
        return_finish_reason:BOOL return_stop_reason:BOOL return_cumulative_logprob:BOOL stop:BOOL
        lora_id:UINT64 lora_name:STRING lora_path:STRING lora_ckpt_source:STRING
        """,
        dims={"text_input": [-1], "image_url": [-1], "sampling_param_stop": [-1]},
    ),
    "output": tensors(
        """
        text_output:STRING finish_reason:STRING stop_reason:STRING cumulative_logprob:FP32
        kv_cache_reused_block:INT32 kv_cache_hit_rate:FP32
        """
    ),
}
DECOUPLED_LLMAPI = {**LLMAPI, "model_transaction_policy": {"decoupled": True}}
CONSTRAINED_LLMAPI = {
    **LLMAPI,
    "input": [
        *LLMAPI["input"],
        *_declared("", "sampling_param_logits_post_processor_name:STRING"),
    ],
}

PYTHON: dict[str, Any] = {
    "backend": "python",
    "max_batch_size": 8,
    "input": _declared("PROMPT:STRING HEAT:FP32 LONGEST:INT32", "mask:FP32"),
    "output": tensors("REPLY:STRING score:FP32"),
}
PYTHON_TENSORS = {"text_input": "PROMPT", "temperature": "HEAT", "max_tokens": "LONGEST"}


class Letters:
    """A vocabulary in which each character is a token, whose id is its code point."""

    def ids(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def token_text(self, token_id: int) -> str | None:
        return chr(token_id) if token_id < 0x110000 else None

    def unprefixed(self, text: str) -> str:
        return text.removeprefix("<s>")

    def plain(self, text: str) -> str:
        return text.replace("<s>", "")


def values(tensor: tuple[str, tuple[int, ...], bytes]) -> list[Any]:
    """Return a tensor's values, as Triton would read them."""
    datatype, _, raw = tensor
    if datatype != "BYTES":
        return [element.item() for element in np.frombuffer(raw, _NUMPY[datatype])]
    texts = []
    while raw:
        length = int.from_bytes(raw[:4], "little")
        texts.append(raw[4 : 4 + length].decode())
        raw = raw[4 + length :]
    return texts


_NUMPY = {
    "BOOL": "?", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
    "INT32": "<i4", "INT64": "<i8", "UINT32": "<u4", "UINT64": "<u8",
}  # fmt: skip
