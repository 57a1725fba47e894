"""Converts an engine's deltas to Triton's responses."""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from openai_frontend.engines import input_tensors, output_tensors
from openai_frontend.engines.engine import ConstraintError, EngineError
from openai_frontend.errors import describe_exception
from openai_frontend.generation import CompletionDelta, GenerationRequest, TokenCounts, merge_deltas
from openai_frontend.logs.repeats import log_error
from openai_frontend.runtime.utf8 import well_formed
from openai_frontend.triton import error_codes
from openai_frontend.triton._core import Execution, PendingDeltas, TextStream

logger = logging.getLogger(__name__)

_FLAGS = frozenset({"return_num_output_tokens", "return_logprobs", "return_num_input_tokens"})


def fail(execution: Execution, error: Exception) -> None:
    """Convert an engine's exception to Triton's error. Only EngineError and ValueError keep their
    text.
    """
    if isinstance(error, EngineError):
        execution.fail(error.code, str(error))
    elif isinstance(error, ConstraintError):
        execution.fail(error_codes.INVALID_ARG, f"{error_codes.CONSTRAINT_REFUSED}{error}")
    elif isinstance(error, ValueError):
        execution.fail(error_codes.INVALID_ARG, str(error))
    else:
        log_error(logger, "request %s failed", execution.request_id, error=error, traceback=True)
        execution.fail(error_codes.INTERNAL, describe_exception(error))


class ResponseWriter:
    """An engine's `DeltaSink`: converts deltas to responses.

    A streamed delta of plain text takes a fast path with one BYTES tensor (`send_bytes`, about 5 us
    including the core). If the request does not stream, the deltas are collected and sent in one
    response.
    """

    __slots__ = (
        "__weakref__",  # engines may key resources by weak references to the sink
        "_before",
        "_begun_s",
        "_collected",
        "_count_tokens",
        "_counted",
        "_counts",
        "_due",
        "_execution",
        "_first_token_s",
        "_held",
        "_held_ids",
        "_interval",
        "_live",
        "_logprobs",
        "_plain",
        "_prompt_counts",
        "_stream",
        "_text",
        "_text_only",
        "_token_ids",
        "_unsent",
        "counts_prompt",
        "ended",
        "logprob_arrays",
    )

    def __init__(
        self,
        execution: Execution,
        request: GenerationRequest,
        inputs: Mapping[str, input_tensors.Tensor],
        live: dict[Execution, str],
        unsent: PendingDeltas,
    ) -> None:
        self._execution = execution
        self._unsent = unsent
        self._live = live
        self._stream = request.stream
        self._token_ids = request.return_token_ids
        flags = input_tensors.flags(inputs, _FLAGS)
        self._counts = "return_num_output_tokens" in flags
        self._logprobs = (
            "return_logprobs" in flags or request.sampling_params.prompt_logprobs is not None
        )
        self._text_only = not (self._token_ids or self._counts or self._logprobs)
        self.counts_prompt = self._stream and "return_num_input_tokens" in flags
        self._prompt_counts: TokenCounts | None = None  # for the first response
        self._plain = self._stream and self._text_only and not self.counts_prompt
        self._count_tokens = request.count_tokens and self._stream and self._text_only
        self._counted = 0  # tokens that no response has counted yet
        self._interval = request.stream_interval
        self._due = 1  # tokens until the next response; the first token is sent at once
        self._held: list[str] = []  # texts for one larger response
        self._held_ids: list[int] = []  # of tokens without a response, if they are counted
        self._collected: list[CompletionDelta] = []
        self._before = input_tensors.read_text_before(inputs, request)
        self._text: TextStream | None = None
        self._begun_s = time.monotonic()
        self._first_token_s: float | None = None  # of a request that does not stream
        self.logprob_arrays = request.logprob_arrays
        self.ended = False

    def __del__(self) -> None:
        """Fails the request if the engine forgot it, so that the caller does not wait forever."""
        if self._execution in self._live:
            self.fail(EngineError("the engine dropped the request without a response"))

    @property
    def cancelled(self) -> bool:
        return self._execution.ended or self._execution.cancelled

    def send_text(self, text: str, token_ids: Sequence[int]) -> None:
        """Append plain text: the hot path, without an object per delta."""
        if not self._plain:
            self.send(CompletionDelta(text, token_ids))
        elif not self._execution.ended:
            self._counted += len(token_ids)
            self._send_plain(text, token_ids)

    def text_stream(
        self, step: Callable[[Any, int], str | None], tokenizer: Any, logprobs: int = 0
    ) -> TextStream | None:
        """The native fast path for streamed text, maybe with `logprobs` columns of log
        probabilities; None if the request wants more than that.
        """
        if not self._stream or self._token_ids or self._counts:
            return None
        if self._logprobs != bool(logprobs) or (self._interval > 1 and not logprobs):
            return None
        self._text = TextStream(
            self._execution,
            step,
            tokenizer,
            self._unsent,
            keeps_ids=self._count_tokens,
            logprobs=logprobs,
        )
        return self._text

    def send(self, delta: CompletionDelta) -> None:
        """Append a delta; one with a finish reason ends the output."""
        if self._execution.ended:
            return
        tokens = len(delta.token_ids)
        self._counted += tokens
        if delta.finish_reason is not None:
            self._end(delta)
        elif self._plain:
            uncounted = not self._count_tokens or (tokens == 1 and not self._held_ids)
            if delta.text and uncounted and self._interval == 1 and self._text is None:
                self._send_text(delta.text)  # the usual token
            else:
                self._send_plain(delta.text, delta.token_ids)
        elif self.counts_prompt:
            self._send_first(delta)
        elif self._stream:
            self._execution.send(self._outputs(delta))
        else:
            self._unsent.whole += 1
            if self._first_token_s is None:
                self._note_first_token()
            if self._text_only:  # in place, since this is done for each token
                self._held.append(delta.text)
            else:
                self._collected.append(delta)

    def count_prompt(self, counts: TokenCounts) -> None:
        """Report the prompt's counts with the first delta, which follows."""
        self._prompt_counts = counts

    def _send_first(self, delta: CompletionDelta) -> None:
        """Send the first delta with the prompt's counts; the next ones take their usual path."""
        self.counts_prompt, self._plain = False, self._text_only
        self._due = self._interval
        outputs = self._outputs(delta)
        if self._prompt_counts is not None:
            if not self._counts:
                outputs.append(self._count_output())
            outputs += _counts(self._prompt_counts)
        self._execution.send(outputs)

    def _send_plain(self, text: str, token_ids: Sequence[int]) -> None:
        if self._count_tokens:
            self._count(token_ids)
        if self._interval > 1:
            self._gather(text, len(token_ids) or 1)
        elif text:
            self._send_text(text)
        else:  # the token completes no character
            self._unsent.streamed += 1

    def _count(self, token_ids: Sequence[int]) -> None:
        if self._text is not None:
            self._held_ids += self._text.take_ids()
        self._held_ids += token_ids

    def _note_first_token(self) -> None:
        self._first_token_s = time.monotonic() - self._begun_s

    def _gather(self, text: str, tokens: int) -> None:
        """Send text once `stream_interval` tokens have arrived."""
        self._unsent.streamed += 1
        if text:
            self._held.append(text)
        self._due -= tokens
        if self._due <= 0 and self._held:
            self._send_text("".join(self._held))
            self._held, self._due = [], self._interval

    def _send_text(self, text: str) -> None:
        if self._held_ids:
            ids, self._held_ids = self._held_ids, []
            outputs = [
                output_tensors.bytes_output("text_output", text),
                output_tensors.token_ids_output(ids),
            ]
            self._execution.send(outputs)
            return
        try:
            self._execution.send_bytes("text_output", text)
        except UnicodeEncodeError:
            self._execution.send_bytes("text_output", well_formed(text))

    def fail(self, error: Exception) -> None:
        """End the output with an error, after the text that has already arrived."""
        self.ended = True
        if self._stream and self._held and not self._execution.ended:
            self._send_text("".join(self._held))
        self._held = []
        self._live.pop(self._execution, None)
        fail(self._execution, error)

    def _end(self, delta: CompletionDelta) -> None:
        self.ended = True
        self._live.pop(self._execution, None)
        if not self._stream and self._first_token_s is None:
            self._note_first_token()
        if self._collected:
            delta = merge_deltas([*self._collected, delta])
        elif self._held:
            delta.text = "".join([*self._held, delta.text])
            self._held = []
        if self._count_tokens:
            self._count(delta.token_ids)
            delta.token_ids = self._held_ids
        if self._before:
            delta = dataclasses.replace(delta, text=self._before + delta.text)
        self._execution.send(self._outputs(delta), final=True)

    def _outputs(self, delta: CompletionDelta) -> list[output_tensors.Output]:
        if self._text is not None:
            self._counted += self._text.take_count()
        outputs = [output_tensors.bytes_output("text_output", delta.text)]
        if self._counts or delta.finish_reason is not None:
            outputs.append(self._count_output())
        if self._token_ids or self._count_tokens:
            outputs.append(output_tensors.token_ids_output(delta.token_ids))
        if not self._text_only:
            outputs += _logprob_outputs(delta)
        if delta.finish_reason is not None:
            outputs.append(output_tensors.finish_reason_output(delta.finish_reason))
        if delta.stop_reason is not None:
            outputs.append(output_tensors.json_output("stop_reason", delta.stop_reason))
        if self._first_token_s is not None:
            outputs.append(output_tensors.float_output("first_token_latency", self._first_token_s))
        if delta.counts is not None:
            outputs += _counts(delta.counts)
        return outputs

    def _count_output(self) -> output_tensors.Output:
        """The tokens that no response has counted yet."""
        counted, self._counted = self._counted, 0
        return output_tensors.count_output("num_output_tokens", counted)


def _logprob_outputs(delta: CompletionDelta) -> Iterator[output_tensors.Output]:
    if delta.logprob_arrays is not None:
        yield from output_tensors.logprob_outputs(delta.logprob_arrays)
    if delta.logprobs is not None:
        yield output_tensors.json_output("logprobs", delta.logprobs)
    if delta.prompt_logprobs is not None:
        yield output_tensors.json_output("prompt_logprobs", delta.prompt_logprobs)


def _counts(counts: TokenCounts) -> list[output_tensors.Output]:
    outputs = [
        output_tensors.count_output("num_input_tokens", counts.prompt_tokens),
        output_tensors.count_output("num_cached_tokens", counts.cached_tokens),
    ]
    if counts.image_tokens:
        outputs.append(output_tensors.count_output("num_image_tokens", counts.image_tokens))
    if counts.audio_tokens:
        outputs.append(output_tensors.count_output("num_audio_tokens", counts.audio_tokens))
    if counts.transferred_tokens is not None or counts.kv_transfer_params is not None:
        outputs += output_tensors.transfer_outputs(counts)
    return outputs
