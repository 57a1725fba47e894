"""`tensorrt_llm` of a TensorRT-LLM pipeline: the engine between the two tokenizing models."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tests.api.backends.standins import scheduler
from tests.api.backends.standins.adapters import Adapters
from tests.api.backends.standins.guides import Guides
from tests.api.backends.standins.llama import Llama
from tests.api.backends.standins.sequence import Sampling, Sequence, beams
from tests.api.backends.standins.tensors import FINAL, array, failure, parameter, scalar, text

# Inputs of one number -> their names in Sampling
_NUMBERS = {
    "request_output_len": "max_tokens",
    "min_tokens": "min_tokens",
    "end_id": "end_id",
    "temperature": "temperature",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}


class TritonPythonModel:
    """Decoupled; every tensor has a batch dimension of one."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        weights = Path(parameter(config, "gpt_model_path")) / "weights"
        self.llama = Llama(weights)
        self.end_id = self.llama.config["eos_token_id"]
        self.guides = Guides(weights, self.end_id)
        self.adapters = Adapters(self.llama, int(parameter(config, "lora_cache_tasks", "2")))
        self.max_beam_width = int(parameter(config, "max_beam_width", "1"))
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                answer = self.answer(request)
            except (ValueError, KeyError, LookupError) as error:
                sender.send(failure(_of_executor(error)), flags=FINAL)
                continue
            scheduler.start(answer)

    def answer(self, request: Any) -> "Answer":
        length = scalar(request, "input_lengths")
        prompt = array(request, "input_ids")[0, :length].tolist()
        if not prompt:
            raise ValueError("Invalid format for input_ids")
        if scalar(request, "streaming", False) and not self.decoupled:
            raise ValueError("Streaming is only supported in decoupled mode.")
        sampling = self.sampling(request)
        width = scalar(request, "beam_width", 1)
        if width > self.max_beam_width:
            raise ValueError(
                f"Requested beam width {width} is larger than configured max beam width "
                f"{self.max_beam_width}"
            )
        if width > 1:
            return Answer(request, [], beams(self.llama, prompt, sampling, width))
        adapter = self.adapter(request)
        count = scalar(request, "num_return_sequences", 1)
        return Answer(
            request,
            [
                Sequence(
                    self.llama,
                    prompt,
                    _seeded(sampling, index),
                    adapter=adapter,
                    guide=self.guide(request),
                )
                for index in range(count)
            ],
        )

    def sampling(self, request: Any) -> Sampling:
        numbers = {
            field: value
            for name, field in _NUMBERS.items()
            if (value := scalar(request, name)) is not None
        }
        bias = array(request, "embedding_bias")
        return Sampling(
            **numbers,
            bias=bias[0] if bias is not None and bias.size else None,
            stop_words=_words(array(request, "stop_words_list")),
            bad_words=_words(array(request, "bad_words_list")),
        )

    def adapter(self, request: Any) -> Any:
        task_id = scalar(request, "lora_task_id")
        if not task_id:
            return None
        weights, config = array(request, "lora_weights"), array(request, "lora_config")
        return self.adapters.adapter(
            task_id,
            None if weights is None else weights[0],
            None if config is None else config[0],
        )

    def guide(self, request: Any) -> Any:
        kind = text(request, "guided_decoding_guide_type")
        if kind is None:
            return None
        return self.guides.guide(kind, text(request, "guided_decoding_guide") or "")


class Answer:
    """The answers to one request."""

    def __init__(
        self, request: Any, sequences: list[Sequence], finished: list[Sequence] | None = None
    ) -> None:
        self._request = request
        self._sender = request.get_response_sender()
        self._sequences = sequences
        self._beams = finished
        self._streams = bool(scalar(request, "streaming", False))
        self._without_input = bool(scalar(request, "exclude_input_in_output", False))
        self._arrived = self._first = time.time_ns()
        self._told = [0] * len(sequences)

    def advance(self) -> bool:
        """One token of each sequence."""
        if self._beams is not None:
            self._send(self._beams, 0, final=True)
            return True
        running = [each for each in self._sequences if each.finish_reason is None]
        for number, sequence in enumerate(self._sequences):
            if sequence.finish_reason is None:
                sequence.step()
                self._first = self._first if self._told[0] else time.time_ns()
                ended = sequence.finish_reason is not None
                last = ended and running[-1] is sequence
                if self._streams or ended:
                    self._send([sequence], number, final=last)
        return all(each.finish_reason for each in self._sequences)

    def is_cancelled(self) -> bool:
        cancelled: bool = self._request.is_cancelled()
        return cancelled

    def cancel(self) -> None:
        """The executor ends a cancelled request with its tokens so far, without an error."""
        if not self._streams:
            self._send(self._sequences[:1], 0, final=True)
        else:
            self._sender.send(flags=FINAL)

    def _send(self, told: list[Sequence], number: int, *, final: bool) -> None:
        tensors = {**self._tokens(told, number), **self._asked(told, number)}
        outputs = [pb_utils.Tensor(name, given) for name, given in tensors.items()]
        self._sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL if final else 0)

    def _tokens(self, told: list[Sequence], number: int) -> dict[str, Any]:
        """The new ones if streaming; otherwise all, with the prompt's unless it is excluded."""
        if self._streams:
            ids = [told[0].token_ids[self._told[number] :]]
            self._told[number] += len(ids[0])
        else:
            ids = [
                each.token_ids if self._without_input else each.prompt + each.token_ids
                for each in told
            ]
        longest = max(map(len, ids))
        padded = [[*each, *[-1] * (longest - len(each))] for each in ids]
        tensors: dict[str, Any] = {
            "output_ids": np.array([padded], np.int32).reshape(1, len(ids), longest),
            "sequence_length": np.array([[len(each) for each in ids]], np.int32),
        }
        if scalar(self._request, "return_num_output_tokens", False):
            tensors["num_output_tokens"] = np.array([[len(ids) * longest]], np.int32)
        if len(self._sequences) > 1:
            tensors["sequence_index"] = np.array([[number]], np.int32)
        return tensors

    def _asked(self, told: list[Sequence], number: int) -> dict[str, Any]:
        """The additional outputs that the request asks for."""
        tensors: dict[str, Any] = {}
        flags = self._request
        if scalar(flags, "return_num_input_tokens", False):
            tensors["num_input_tokens"] = np.array([[len(told[0].prompt)]], np.int32)
        if scalar(flags, "return_log_probs", False):  # all of them, also if streaming
            lists = [each.log_probabilities for each in told]
            longest = max(map(len, lists))
            padded = [[*each, *[-1.0] * (longest - len(each))] for each in lists]
            tensors["output_log_probs"] = np.array([padded], np.float32)
            tensors["cum_log_probs"] = np.array([[sum(each) for each in lists]], np.float32)
        if scalar(flags, "return_context_logits", False):
            tensors["context_logits"] = np.asarray(told[0].prompt_logits)[None]
        if scalar(flags, "return_generation_logits", False):
            tensors["generation_logits"] = np.array([[each.logits for each in told]], np.float32)
        if scalar(flags, "return_perf_metrics", False):
            tensors.update(self._performance())
        return tensors

    def _performance(self) -> dict[str, Any]:
        times = {
            "arrival_time_ns": self._arrived,
            "first_scheduled_time_ns": self._arrived,
            "first_token_time_ns": self._first,
            "last_token_time_ns": time.time_ns(),
        }
        return {name: np.array([[value]], np.int64) for name, value in times.items()}


def _of_executor(error: Exception) -> str:
    reason = error.args[0]
    return f"Executor failed process requestId 1 due to the following error: {reason}"


def _seeded(sampling: Sampling, index: int) -> Sampling:
    """A different seed for each answer to one request."""
    return replace(sampling, seed=sampling.seed + index)


def _words(given: Any) -> list[list[int]]:
    """The words of a tensor [1, 2, tokens]: tokens, and the end offset of each word."""
    if given is None or not given.size:
        return []
    tokens, ends = given[0].tolist()
    starts = [0, *ends]
    return [tokens[start:end] for start, end in zip(starts, ends, strict=False) if end != -1]
