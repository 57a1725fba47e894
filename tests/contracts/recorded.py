"""Model configs as Triton reports them, and responses as its backends send them."""

from typing import Any


def tensors(declared: str) -> list[dict[str, Any]]:
    """Declarations as in a model's config, from words such as "text_input:STRING"."""
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
        return_logprobs:BOOL return_token_ids:BOOL return_num_input_tokens:BOOL
        return_num_output_tokens:BOOL return_finish_reason:BOOL
        exclude_input_in_output:BOOL priority:INT32 cache_salt:STRING
        stream_interval:INT32 embedding_request:STRING score_request:STRING
        """
    ),
    "output": tensors(
        """
        text_output:STRING token_ids:INT32 finish_reason:STRING stop_reason:STRING
        num_input_tokens:UINT32 num_output_tokens:UINT32 num_cached_tokens:UINT32
        logprobs:STRING prompt_logprobs:STRING embedding:FP32 score:FP32
        """
    ),
}


class RecordedOutputs:
    """A response with the methods of the native one, over plain values."""

    def __init__(self, final: bool = False, **values: Any) -> None:
        self.final = final
        self._values = values

    def item(self, name: str) -> Any:
        value = self._values.get(name)
        return value[0] if isinstance(value, list) else value

    def tolist(self, name: str) -> list[Any] | None:
        value = self._values.get(name)
        return value if value is None or isinstance(value, list) else [value]

    def tensor(self, name: str) -> Any:
        return self._values.get(name)
