"""Decodes responses of models that have one output for each value that they report.

`derived_outputs.py` works out what they do not report.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from openai_frontend.contracts import DecodeText, Outputs, declared_names, text_decoder
from openai_frontend.contracts.derived_outputs import UNKNOWN_TOKEN
from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import (
    CompletionDelta,
    FinishReason,
    GenerationRequest,
    SequenceDelta,
    TokenCounts,
)

Step = Callable[[CompletionDelta, Outputs], None]  # adds to a delta

# Performance metrics of TensorRT-LLM's models, with the names of all of its releases
METRICS = (
    "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks",
    "kv_cache_reused_block", "kv_cache_missed_block", "kv_cache_hit_rate", "arrival_time_ns",
    "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns", "acceptance_rate",
    "total_accepted_draft_tokens", "total_draft_tokens", "cum_log_probs", "cumulative_logprob",
)  # fmt: skip

# Member of extra_args -> the outputs that it requests
_REQUESTED_OUTPUTS: Mapping[str, Sequence[str]] = {
    "return_perf_metrics": METRICS,
    "return_cumulative_logprob": ("cumulative_logprob",),
    "return_context_logits": ("context_logits",),
    "return_generation_logits": ("generation_logits",),
}

_FINISH_REASONS: Mapping[str, FinishReason | None] = {
    "stop": "stop",
    "length": "length",
    "eos": "stop",
    "none": None,
    "": None,
}

# Output -> what is derived if a model does not have it
_DERIVED = {
    "finish_reason": "finish_reason",
    "num_input_tokens": "prompt_tokens",
    "num_output_tokens": "completion_tokens",
}


class OutputFields:
    """Decodes one model's outputs."""

    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Mapping[str, str],
        *,
        logprobs: str,
        accumulates: bool,
    ) -> None:
        """`tensors`: our name -> the model's name. `logprobs`: the output with them, if any.
        `accumulates`: each response has the complete text so far.
        """
        self._accumulates = accumulates
        self._declared = declared_names(config, "output")
        self._tensors = tensors
        self._log_probabilities = self._name(logprobs)
        self._text, self._reason, self._stop_reason, self._read, self._written = (
            self._name(ours)
            for ours in (
                "text_output",
                "finish_reason",
                "stop_reason",
                "num_input_tokens",
                "num_output_tokens",
            )
        )

    def __contains__(self, ours: str) -> bool:
        return self._name(ours) in self._declared

    def derived(self) -> frozenset[str]:
        """Values that must be derived because the model has no output for them."""
        return frozenset(name for output, name in _DERIVED.items() if output not in self)

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """A function that decodes each response to this request."""
        params = request.sampling_params
        decode_text = _decode_alone if self._accumulates else text_decoder()
        decode = partial(self._decode, decode_text)
        if request.sequences > 1:
            decode = partial(self._one_sequence, decode_text, at=request.sequence)
        steps: list[Step] = []
        if params.logprobs is not None:
            steps.append(self._add_logprobs)
        if arguments := set(params.extra_args or ()) & _REQUESTED_OUTPUTS.keys():
            names = [
                name for each in arguments for name in _REQUESTED_OUTPUTS[each] if name in self
            ]
            steps.append(partial(_add_requested, names=names))
        return partial(_apply_steps, decode, steps) if steps else decode

    def _name(self, ours: str) -> str:
        """The model's name of an output."""
        return self._tensors.get(ours, ours)

    def _decode(self, decode_text: DecodeText, outputs: Outputs) -> CompletionDelta:
        """Text, counts and finish reason of one response."""
        delta = CompletionDelta()
        reason = _text(outputs.item(self._reason))
        if reason is not None:
            delta.finish_reason = _finish_reason(reason)
            delta.stop_reason = _stop_reason(_text(outputs.item(self._stop_reason)))
        last = outputs.final or delta.finish_reason is not None
        delta.text = decode_text(_bytes(outputs.item(self._text)), last)
        tokens = outputs.item(self._written)
        if tokens is not None:
            delta.counts = TokenCounts(int(outputs.item(self._read) or 0), int(tokens))
        return delta

    def _one_sequence(
        self, decode_text: DecodeText, outputs: Outputs, *, at: int
    ) -> CompletionDelta:
        """One sequence of several; the model does not report the length of each."""
        texts = outputs.tolist(self._text) or []
        part = _bytes(texts[at]) if at < len(texts) else b""
        return SequenceDelta(decode_text(part, outputs.final), sequence=at)

    def _add_logprobs(self, delta: CompletionDelta, outputs: Outputs) -> None:
        """One number for each token; the model does not report which token."""
        numbers = outputs.tolist(self._log_probabilities) or []
        if delta.counts is not None:  # a stream repeats those of earlier responses
            numbers = numbers[max(0, len(numbers) - delta.counts.completion_tokens) :]
        if numbers:
            delta.logprobs = [{UNKNOWN_TOKEN: {"logprob": number}} for number in numbers]


def _apply_steps(
    decode: Callable[[Outputs], CompletionDelta], steps: Sequence[Step], outputs: Outputs
) -> CompletionDelta:
    delta = decode(outputs)
    for step in steps:
        step(delta, outputs)
    return delta


def _add_requested(delta: CompletionDelta, outputs: Outputs, *, names: Sequence[str]) -> None:
    """Adds the outputs that the request asked for, if this response has them."""
    tensors = {name: outputs.tensor(name) for name in names}
    found = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if found:
        delta.counts = replace(
            delta.counts or TokenCounts(),
            metrics={name: _number(outputs.item(name)) for name in found if name in METRICS},
            logits={name: found[name] for name in found if name not in METRICS},
        )


def _decode_alone(text: bytes, last: bool) -> str:
    """A character that is not complete yet becomes U+FFFD."""
    return str(text, "utf-8", "replace")


def _bytes(element: Any) -> bytes:
    """The bytes of a text; b"" if a response does not have it."""
    return element if isinstance(element, bytes) else str(element or "").encode()


def _text(element: Any) -> str | None:
    if element is None:
        return None
    return str(element, "utf-8", "replace") if isinstance(element, bytes) else str(element)


def _number(element: Any) -> int | float:
    """The LLM-API model writes its numbers as text."""
    return element if isinstance(element, (int, float)) else float(_text(element) or 0)


def _finish_reason(text: str) -> FinishReason | None:
    try:
        return _FINISH_REASONS[text.lower()]
    except KeyError:
        raise InferenceFailed(
            f"The model ended the request with an unknown finish reason '{text}'."
        ) from None


def _stop_reason(text: str | None) -> str | int | None:
    """A stop string or a token id."""
    if text in (None, "", "None"):
        return None
    return int(text) if text is not None and text.isdecimal() else text
