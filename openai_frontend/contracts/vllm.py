"""The tensors of NVIDIA's vLLM backend and of our in-process backend, which adds token ids."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from openai_frontend.contracts.contract import (
    DeclaredInputs,
    Outputs,
    TensorInput,
    Vocabulary,
    declared_names,
)
from openai_frontend.contracts.sampling_parameters import SamplingParameters
from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.generation import (
    CompletionDelta,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenCounts,
    TokenLogprobs,
)

# What ends an answer, in the model's words and in ours. NVIDIA's backend says "None" until the end.
_FINISH_REASONS: Mapping[bytes, FinishReason | None] = {
    b"stop": "stop",
    b"length": "length",
    b"abort": "abort",
    b"repetition": "stop",  # vLLM's repetition detection
    b"None": None,
}

# Inputs that ask for outputs which our in-process backend sends unasked with its last response
_REPORT_FLAGS = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")

# What a request's field needs: the input that carries it and the output that answers it, if any
_NEEDS = {
    "prompt": ("text_input", None),
    "prompt_token_ids": ("prompt_token_ids", None),
    "stream": ("stream", None),
    "return_token_ids": ("return_token_ids", "token_ids"),
    "logprobs": ("return_logprobs", "logprobs"),
    "logprob_token_ids": ("return_logprobs", "logprobs"),
    "prompt_logprobs": ("sampling_parameters", "prompt_logprobs"),
    "priority": ("priority", None),
    "cache_salt": ("cache_salt", None),
    "stream_interval": ("stream_interval", None),
    "top_logprobs": ("return_logprobs", "logprobs"),
    "logprob_ids": ("return_logprobs", "logprobs"),
    "running_counts": ("return_num_output_tokens", "num_output_tokens"),
}

# What NVIDIA's backend makes a failure of: it leaves JSON's text as the keys of logit_bias, and
# comes from before vLLM had the others.
_INPROCESS_ONLY = {
    "logit_bias",
    "logprob_token_ids",
    "thinking_token_budget",
    "repetition_detection",
}

# What other models are told: an adapter vLLM finds by its name, and its engine follows no beams.
_OF_OTHERS = {"adapter_weights", "adapter_path", "beam_width", "length_penalty"}

# Stands for minus infinity, which JSON cannot say
_LOWEST_LOGPROB = -9999.0


class VLLMContract:
    """Reads a model's config once; sends only the tensors that it declares."""

    extra_args: frozenset[str] | None = None  # the engine's plug-ins take any

    def __init__(self, config: Mapping[str, Any], vocabulary: Vocabulary | None = None) -> None:
        self._inputs = DeclaredInputs(config)
        self._outputs = declared_names(config, "output")
        self._vocabulary = vocabulary
        self.derives = _unreported(self._outputs, self._inputs)
        self._sampling_parameters = SamplingParameters()
        self._flags = _constant_flags(config, self._inputs)
        self._inprocess = config.get("backend") == "inprocess"
        self._ends_silently = "finish_reason" not in self._outputs

    def supports(self, field: str) -> bool:
        """True where the model declares the tensors that this request field needs, and its
        backend reads the field.
        """
        if field in _OF_OTHERS or (field in _INPROCESS_ONLY and not self._inprocess):
            return False
        needed_input, needed_output = _NEEDS.get(field, ("sampling_parameters", None))
        return needed_input in self._inputs and (
            needed_output is None or needed_output in self._outputs
        )

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        """Prompt, sampling parameters as JSON text, and flags for what the response should hold."""
        inputs = dict(self._flags)
        inputs.update(self._prompt(request))
        if "sampling_parameters" in self._inputs:
            adapter = request.adapter
            text = self._sampling_parameters.encode(
                request.sampling_params, lora_name=None if adapter is None else adapter.name
            )
            inputs["sampling_parameters"] = self._inputs.tensor("sampling_parameters", [text])
        for name, wanted in (
            ("stream", request.stream),
            ("return_token_ids", request.return_token_ids),
            ("return_logprobs", _wants_logprobs(request.sampling_params)),
        ):
            if wanted and name in self._inputs:
                inputs[name] = self._inputs.true(name)
        if request.priority and "priority" in self._inputs:
            inputs["priority"] = self._priority(request.priority)
        if request.cache_salt is not None and "cache_salt" in self._inputs:
            inputs["cache_salt"] = self._inputs.tensor("cache_salt", [request.cache_salt])
        if request.stream_interval > 1 and "stream_interval" in self._inputs:
            inputs["stream_interval"] = self._inputs.tensor(
                "stream_interval", [request.stream_interval]
            )
        return inputs

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """What turns this request's responses into deltas; it runs once a token."""
        return self.decode if self.text_output(request) is None else self._decode_text

    def text_output(self, request: GenerationRequest) -> str | None:
        """The output that alone makes a response, until the last one; None where more may be told
        with it.
        """
        params = request.sampling_params
        extras = (
            request.return_token_ids
            or _wants_logprobs(params)
            or params.prompt_logprobs is not None
        )
        return "text_output" if self._inprocess and not extras else None

    def _decode_text(self, outputs: Outputs) -> CompletionDelta:
        """A response that is not the last one of an in-process model holds text alone.

        1.0 us against 1.4: an output that is looked for and absent costs 0.13 us.
        """
        if outputs.final:
            return self.decode(outputs)
        text = outputs.item("text_output")
        return CompletionDelta("" if text is None else str(text, "utf-8", "replace"))

    def decode(self, outputs: Outputs) -> CompletionDelta:
        """One delta per response."""
        text = outputs.item("text_output")
        delta = CompletionDelta("" if text is None else str(text, "utf-8", "replace"))
        token_ids = outputs.tolist("token_ids")
        if token_ids is not None:
            delta.token_ids = token_ids
        logprobs = outputs.item("logprobs")
        if logprobs is not None:
            delta.logprobs = _logprobs(logprobs)
        prompt_logprobs = outputs.item("prompt_logprobs")
        if prompt_logprobs is not None:
            delta.prompt_logprobs = _logprobs(prompt_logprobs)
        finish_reason = outputs.item("finish_reason")
        if finish_reason is not None:
            delta.finish_reason = _finish_reason(finish_reason)
            delta.stop_reason = _stop_reason(outputs)
        # where a finish reason comes with every response, so do the counts
        if finish_reason is not None or self._ends_silently:
            delta.counts = _counts(outputs)
        return delta

    def _prompt(self, request: GenerationRequest) -> dict[str, TensorInput]:
        if request.prompt_token_ids is not None and "prompt_token_ids" in self._inputs:
            return {"prompt_token_ids": self._token_ids(request.prompt_token_ids)}
        if request.prompt is not None and "text_input" in self._inputs:
            return {"text_input": self._inputs.tensor("text_input", [self._text(request.prompt)])}
        taken = "text" if "text_input" in self._inputs else "token ids"
        raise InvalidRequest(f"This model takes prompts as {taken} only.", param="prompt")

    def _text(self, prompt: str) -> str:
        """vLLM puts BOS before a text itself, also where a chat template has written one."""
        return prompt if self._vocabulary is None else self._vocabulary.unprefixed(prompt)

    def _token_ids(self, token_ids: Sequence[int]) -> TensorInput:
        try:
            return self._inputs.tensor("prompt_token_ids", token_ids)
        except OverflowError:
            message = "The prompt holds token ids that the model cannot have."
            raise InvalidRequest(message, param="prompt") from None

    def _priority(self, priority: int) -> TensorInput:
        try:
            return self._inputs.tensor("priority", [priority])
        except OverflowError:
            message = f"A priority of {priority} is more than the model can be told."
            raise InvalidRequest(message, param="priority") from None


def _unreported(outputs: frozenset[str], inputs: DeclaredInputs) -> frozenset[str]:
    """What releases of the backend did not say before it had an output for it."""
    derived = {
        "finish_reason": "finish_reason",
        "num_input_tokens": "prompt_tokens",
        "num_output_tokens": "completion_tokens",
    }
    lacking = {name for output, name in derived.items() if output not in outputs}
    return frozenset(lacking | (set() if "exclude_input_in_output" in inputs else {"prompt"}))


def _constant_flags(config: Mapping[str, Any], inputs: DeclaredInputs) -> dict[str, TensorInput]:
    """The flags that every request of this model carries."""
    names = ["exclude_input_in_output"]
    if config.get("backend") != "inprocess":
        names += _REPORT_FLAGS
    return {name: inputs.true(name) for name in names if name in inputs}


def _wants_logprobs(params: SamplingParams) -> bool:
    return params.logprobs is not None or bool(params.logprob_token_ids)


def _finish_reason(reason: bytes) -> FinishReason | None:
    try:
        return _FINISH_REASONS[reason]
    except KeyError:
        text = reason.decode("utf-8", "replace")
        raise InferenceFailed(f"The engine ended the request with '{text}'.") from None


def _stop_reason(outputs: Outputs) -> int | str | None:
    """The token id or the text that stopped the generation; NVIDIA's backend does not say."""
    reason = outputs.item("stop_reason")
    return None if reason is None else orjson.loads(reason)


def _counts(outputs: Outputs) -> TokenCounts | None:
    completion_tokens = outputs.item("num_output_tokens")
    if completion_tokens is None:
        return None
    prompt_tokens = outputs.item("num_input_tokens") or 0
    return TokenCounts(
        prompt_tokens,
        completion_tokens,
        outputs.item("num_cached_tokens") or 0,
        first_token_s=outputs.item("first_token_latency"),
    )


def _logprobs(text: bytes) -> list[Any] | None:
    """One mapping per token, token id -> logprob, rank, decoded_token; JSON has the ids as text."""
    try:
        positions = orjson.loads(text)
    except orjson.JSONDecodeError:  # Python's json writes -Infinity
        positions = json.loads(text, parse_constant=lambda _: _LOWEST_LOGPROB)
    if positions is None:
        return None
    if b"null" in text:  # other writers of JSON put it for minus infinity
        for position in positions:
            _tell_lowest(position or {})
    return [position and _by_token_id(position) for position in positions]


def _tell_lowest(position: Mapping[str, dict[str, Any]]) -> None:
    for entry in position.values():
        if entry["logprob"] is None:
            entry["logprob"] = _LOWEST_LOGPROB


def _by_token_id(position: Mapping[str, Mapping[str, Any]]) -> TokenLogprobs:
    return {int(token_id): entry for token_id, entry in position.items()}
