"""`tensorrt_llm_bls`: calls the three models of a TensorRT-LLM pipeline, one request at a time."""

import json
import traceback
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tests.api.backends.standins.tensors import (
    FINAL,
    array,
    failure,
    parameter,
    scalar,
    strings,
    text,
    texts,
)

# Our input -> preprocessing's
_READ = {
    "text_input": "QUERY",
    "decoder_text_input": "DECODER_QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
}
# preprocessing's output -> the engine's input
_TOKENS = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "DECODER_INPUT_ID": "decoder_input_ids",
    "REQUEST_DECODER_INPUT_LEN": "decoder_input_lengths",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
    "OUT_PROMPT_TABLE_EXTRA_IDS": "prompt_table_extra_ids",
}
# Our input -> the engine's; NVIDIA's declares num_return_sequences but does not pass it on
_GENERATE = {
    "max_tokens": "request_output_len",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
    **{
        name: name
        for name in (
            "temperature", "repetition_penalty", "min_tokens", "presence_penalty",
            "frequency_penalty", "seed", "return_log_probs", "return_context_logits",
            "return_generation_logits", "beam_width",
            "prompt_embedding_table", "prompt_vocab_size", "lora_task_id", "lora_weights",
            "lora_config", "exclude_input_in_output", "return_perf_metrics",
            "return_num_input_tokens", "return_num_output_tokens", "guided_decoding_guide_type",
            "guided_decoding_guide",
        )
    },
}  # fmt: skip
_TOLD = (
    "cum_log_probs", "output_log_probs", "context_logits", "generation_logits", "batch_index",
    "sequence_index", "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks", "arrival_time_ns", "first_scheduled_time_ns",
    "first_token_time_ns", "last_token_time_ns", "acceptance_rate", "total_accepted_draft_tokens",
    "total_draft_tokens", "num_input_tokens", "num_output_tokens",
)  # fmt: skip


class TritonPythonModel:
    """Decoupled: each answer ends with an empty response."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.engine = parameter(config, "tensorrt_llm_model_name", "tensorrt_llm")
        self.draft = parameter(config, "tensorrt_llm_draft_model_name")
        self.accumulates = parameter(config, "accumulate_tokens").lower() == "true"

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                for response in self.responses(request):
                    sender.send(response)
                sender.send(flags=FINAL)
            except (ValueError, pb_utils.TritonModelException):
                # NVIDIA's returns the whole traceback too
                sender.send(failure(traceback.format_exc()), flags=FINAL)

    def responses(self, request: Any) -> Iterator[Any]:
        if scalar(request, "max_tokens") <= 0:
            raise ValueError("max_tokens must be a single value > 0")
        if scalar(request, "num_draft_tokens", 0) > 0 and not self.draft:
            raise ValueError("cannot perform speculative decoding without draft model")
        inputs = _tensors(_inputs(request), _GENERATE) + self.tokens(request)
        call = pb_utils.InferenceRequest(
            model_name=self.engine,
            inputs=inputs,
            request_id=str(uuid.uuid4()),
            requested_output_names=["output_ids", "sequence_length", *_TOLD],
        )
        so_far: list[Any] = []
        for told in call.exec(decoupled=True):
            _check(told)
            arrays = {each.name(): each.as_numpy() for each in told.output_tensors()}
            if "output_ids" in arrays:
                yield self.response(request, arrays, so_far)

    def tokens(self, request: Any) -> list[Any]:
        called = pb_utils.InferenceRequest(
            model_name="preprocessing",
            inputs=_tensors(_inputs(request), _READ),
            requested_output_names=list(_TOKENS),
        ).exec()
        _check(called)
        arrays = {each.name(): each.as_numpy() for each in called.output_tensors()}
        return _tensors(arrays, _TOKENS)

    def response(self, request: Any, told: dict[str, Any], so_far: list[Any]) -> Any:
        ids, lengths = told["output_ids"], told["sequence_length"]
        if self.accumulates and scalar(request, "stream", False):
            so_far.append(ids)
            ids = np.concatenate(so_far, axis=2)
            lengths = np.array([[ids.shape[2]]], np.int32)
        called = pb_utils.InferenceRequest(
            model_name="postprocessing",
            inputs=[
                pb_utils.Tensor("TOKENS_BATCH", ids),
                pb_utils.Tensor("SEQUENCE_LENGTH", lengths),
            ],
            requested_output_names=["OUTPUT"],
        ).exec()
        _check(called)
        written = [each.decode() for each in called.output_tensors()[0].as_numpy().ravel()]
        outputs = [strings("text_output", [self.cut(request, each) for each in written])]
        outputs += [pb_utils.Tensor(name, told[name]) for name in _TOLD if name in told]
        return pb_utils.InferenceResponse(outputs)

    def cut(self, request: Any, written: str) -> str:
        """A complete answer ends after its first stop word."""
        if scalar(request, "stream", False):
            return written
        start = 0
        if not scalar(request, "exclude_input_in_output", False):
            start = len(text(request, "text_input") or "")
        for word in filter(None, texts(request, "stop_words")):
            if (found := written.find(word, start)) >= 0:
                return written[: found + len(word)]
        return written


def _inputs(request: Any) -> dict[str, Any]:
    return {each.name(): array(request, each.name()) for each in request.inputs()}


def _tensors(arrays: dict[str, Any], names: dict[str, str]) -> list[Any]:
    """The tensors that exist, renamed, with their batch dimension."""
    return [
        pb_utils.Tensor(theirs, given[None] if given.ndim == 1 and ours in names else given)
        for ours, theirs in names.items()
        if (given := arrays.get(ours)) is not None
    ]


def _check(response: Any) -> None:
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
