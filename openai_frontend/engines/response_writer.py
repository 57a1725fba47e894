"""Stands between an engine's deltas and Triton's responses. Knows no engine."""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openai_frontend.engines import tensors
from openai_frontend.engines.engine import EngineError
from openai_frontend.generation import CompletionDelta, GenerationRequest, merge_deltas
from openai_frontend.triton import error_codes
from openai_frontend.triton._core import Execution, TextStream

logger = logging.getLogger(__name__)


def fail(execution: Execution, error: Exception) -> None:
    """The edge where an engine's exceptions become Triton's errors: only what an engine meant
    for the client goes on.
    """
    if isinstance(error, EngineError):
        execution.fail(error.code, str(error))
    elif isinstance(error, ValueError):
        execution.fail(error_codes.INVALID_ARG, str(error))
    else:
        logger.error("request %s failed", execution.request_id, exc_info=error)
        execution.fail(error_codes.INTERNAL, error_codes.describe_exception(error))


class PendingDeltas:
    """Counts, for a whole engine, the deltas that made no response."""

    __slots__ = ("streamed", "whole")

    def __init__(self) -> None:
        self.streamed = 0  # without text, or gathered for a larger piece
        self.whole = 0  # of answers that are sent whole

    def count_streamed(self) -> None:
        """Count a delta of a stream."""
        self.streamed += 1


class ResponseWriter:
    """An engine's `DeltaSink`: turns deltas into responses.

    A streamed delta of plain text takes the short way, one BYTES tensor (`send_bytes`, about 5 us
    with the core). A request that does not stream is collected here and gets one response.
    """

    __slots__ = (
        "__weakref__",  # an engine may keep what a request needs until its sink has gone
        "_before",
        "_begun_s",
        "_collected",
        "_counted",
        "_counts",
        "_due",
        "_execution",
        "_first_token_s",
        "_held",
        "_interval",
        "_live",
        "_plain",
        "_stream",
        "_text",
        "_token_ids",
        "_unsent",
        "ended",
    )

    def __init__(
        self,
        execution: Execution,
        request: GenerationRequest,
        inputs: Mapping[str, tensors.Tensor],
        live: dict[Execution, str],
        unsent: PendingDeltas,
    ) -> None:
        self._execution = execution
        self._unsent = unsent
        self._live = live
        self._stream = request.stream
        self._token_ids = request.return_token_ids
        self._counts = tensors.read_flag(inputs, "return_num_output_tokens")
        logprobs = (
            tensors.read_flag(inputs, "return_logprobs")
            or request.sampling_params.prompt_logprobs is not None
        )
        self._plain = self._stream and not (self._token_ids or self._counts or logprobs)
        self._counted = 0  # tokens that no response has told yet
        self._interval = request.stream_interval
        self._due = 1  # tokens after which text is sent: the first at once
        self._held: list[str] = []
        self._collected: list[CompletionDelta] = []
        self._before = tensors.read_text_before(inputs, request)
        self._text: TextStream | None = None
        self._begun_s = time.monotonic()
        self._first_token_s: float | None = None  # of an answer that is sent whole
        self.ended = False

    def __del__(self) -> None:
        """An engine that forgets a request must not leave its caller waiting."""
        if self._execution in self._live:
            self.fail(EngineError("the engine dropped the request without an answer"))

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._execution.ended or self._execution.cancelled

    def send_text(self, text: str, token_ids: Sequence[int]) -> None:
        """Add plain text: the hot path, without an object for it."""
        if not self._plain:
            self.send(CompletionDelta(text, token_ids))
        elif not self._execution.ended:
            self._counted += len(token_ids)
            if self._interval > 1:
                self._gather(text, len(token_ids))
            elif text:
                try:
                    self._execution.send_bytes("text_output", text)
                except UnicodeEncodeError:
                    self._send_text(text)
            else:  # a token may be a part of a character
                self._unsent.streamed += 1

    def text_stream(
        self, step: Callable[[Any, int], str | None], tokenizer: Any
    ) -> TextStream | None:
        """The way of plain text without Python; None where more than text is wanted."""
        if not self._plain or self._interval > 1:
            return None
        self._text = TextStream(self._execution, step, tokenizer, self._unsent.count_streamed)
        return self._text

    def send(self, delta: CompletionDelta) -> None:
        """Add to the answer; the delta with a finish reason ends it."""
        if self._execution.ended:
            return
        self._counted += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._end(delta)
        elif self._plain and self._interval > 1:
            self._gather(delta.text, len(delta.token_ids) or 1)
        elif self._plain:
            if delta.text:
                self._send_text(delta.text)
            else:
                self._unsent.streamed += 1
        elif self._stream:
            self._execution.send(self._outputs(delta))
        else:
            self._unsent.whole += 1
            self._note_first_token()
            self._collected.append(delta)

    def _note_first_token(self) -> None:
        if self._first_token_s is None:
            self._first_token_s = time.monotonic() - self._begun_s

    def _gather(self, text: str, tokens: int) -> None:
        """Send text once as many tokens have come as the request wants for each response."""
        self._unsent.streamed += 1
        if text:
            self._held.append(text)
        self._due -= tokens
        if self._due <= 0 and self._held:
            self._send_text("".join(self._held))
            self._held, self._due = [], self._interval

    def _send_text(self, text: str) -> None:
        self._execution.send_bytes("text_output", tensors.well_formed(text))

    def fail(self, error: Exception) -> None:
        """End the answer with an error, behind all text that has come."""
        self.ended = True
        if self._held and not self._execution.ended:
            self._send_text("".join(self._held))
            self._held = []
        self._live.pop(self._execution, None)
        fail(self._execution, error)

    def _end(self, delta: CompletionDelta) -> None:
        self.ended = True
        self._live.pop(self._execution, None)
        if not self._stream:
            self._note_first_token()
        if self._collected:
            delta = merge_deltas([*self._collected, delta])
        if self._held:
            delta.text = "".join([*self._held, delta.text])
            self._held = []
        if self._before:
            delta = dataclasses.replace(delta, text=self._before + delta.text)
        self._execution.send(self._outputs(delta), final=True)

    def _outputs(self, delta: CompletionDelta) -> list[tensors.Output]:
        if self._text is not None:
            self._counted += self._text.take_count()
        outputs = [tensors.bytes_output("text_output", delta.text)]
        if self._counts or delta.finish_reason is not None:
            outputs.append(tensors.count_output("num_output_tokens", self._counted))
            self._counted = 0
        if self._token_ids:
            outputs.append(tensors.token_ids_output(delta.token_ids))
        if delta.logprobs is not None:
            outputs.append(tensors.json_output("logprobs", delta.logprobs))
        if delta.prompt_logprobs is not None:
            outputs.append(tensors.json_output("prompt_logprobs", delta.prompt_logprobs))
        if delta.finish_reason is not None:
            outputs.append(tensors.bytes_output("finish_reason", delta.finish_reason))
        if delta.stop_reason is not None:
            outputs.append(tensors.json_output("stop_reason", delta.stop_reason))
        if self._first_token_s is not None:
            outputs.append(tensors.float_output("first_token_latency", self._first_token_s))
        if delta.counts is not None:
            outputs.append(tensors.count_output("num_input_tokens", delta.counts.prompt_tokens))
            outputs.append(tensors.count_output("num_cached_tokens", delta.counts.cached_tokens))
        return outputs
