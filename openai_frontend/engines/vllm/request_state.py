"""State of each request in the step loop: text, token counts and sink."""

from collections import Counter
from typing import Any

from openai_frontend.engines.engine import ConstraintError, DeltaSink, EngineError
from openai_frontend.engines.vllm import conversion, kv_transfer
from openai_frontend.engines.vllm.text_decoding import OutputText
from openai_frontend.generation import CompletionDelta, LogprobArrays, TokenCounts


def takes_arrays(sink: DeltaSink, params: Any) -> bool:
    """Whether the sink takes log probabilities of these parameters as the engine's arrays have
    them: the likeliest, of output that no stop string shortens.
    """
    if not sink.logprob_arrays or params.prompt_logprobs is not None or params.stop:
        return False
    wanted, requested = params.logprobs, getattr(params, "logprob_token_ids", None)
    return wanted is not None and wanted >= 0 and not requested


def _arrays(output: Any, width: int) -> LogprobArrays:
    """The engine's arrays may be wider, for other requests of the batch."""
    lists = output.new_logprobs
    return LogprobArrays(_rows(lists.logprob_token_ids, width), _rows(lists.logprobs, width))


def _rows(array: Any, width: int) -> list[list[Any]]:
    rows: list[list[Any]] = array[:, :width].tolist()
    return rows


class TextRequestState:
    """A request that returns plain text, maybe with log probabilities."""

    __slots__ = (
        "audio_tokens",
        "cached_tokens",
        "image_tokens",
        "logprobs",
        "native",
        "params",
        "prompt_tokens",
        "sink",
        "text",
        "transferred_tokens",
    )

    def __init__(self, sink: DeltaSink, request: Any, text: OutputText, prompt_tokens: int) -> None:
        self.sink = sink
        self.text = text
        self.params = request.sampling_params
        self.logprobs: int | None = self.params.logprobs  # per token, besides its own
        # `advance_all` handles tokens that are only text without Python.
        self.native = (
            None
            if text.step is None
            else sink.text_stream(text.step, text.tokenizer, self._columns)
        )
        self.prompt_tokens = prompt_tokens
        self.image_tokens, self.audio_tokens = _media_tokens(request)
        self.cached_tokens = 0
        self.transferred_tokens: int | None = None

    @property
    def _columns(self) -> int:
        """Log probabilities per token."""
        return 0 if self.logprobs is None else 1 + self.logprobs

    def advance(self, output: Any) -> bool:
        """Send what a step adds. Return whether a stop string ended the request before the engine
        did.
        """
        if (stats := output.prefill_stats) is not None:
            self.cached_tokens = stats.num_cached_tokens
            if self.params.extra_args and kv_transfer.has_transfer(self.params):
                counts = kv_transfer.token_counts(stats)
                self.cached_tokens, self.transferred_tokens = counts
            if self.sink.counts_prompt:
                self.sink.count_prompt(self._prompt_counts())
        token_ids = output.new_token_ids
        if output.finish_reason is None and not self.params.stop:
            text = self.text.more(token_ids)
            if self.logprobs is None:
                self.sink.send_text(text, token_ids)
            else:
                arrays = _arrays(output, self._columns)
                self.sink.send(CompletionDelta(text, token_ids, logprob_arrays=arrays))
            return False
        return self._advance_with_stop(output, output.finish_reason, token_ids)

    def _advance_with_stop(self, output: Any, reason: Any, token_ids: list[int]) -> bool:
        from vllm.v1.engine import FinishReason

        if (refusal := getattr(output, "error", None)) is not None:  # since vLLM 0.33
            self.sink.fail(conversion.translated(refusal.to_exception(), self.params))
            return False
        text, kept, stop_string = self.text.take(
            token_ids, ended=reason is not None, stopped=reason == FinishReason.STOP
        )
        if stop_string is not None:
            reason = FinishReason.STOP
        if reason is None:
            self.sink.send(CompletionDelta(text, kept))
            return False
        self._finish(text, kept, reason, stop_string or output.stop_reason, output)
        return stop_string is not None and output.finish_reason is None

    def _finish(
        self, text: str, token_ids: list[int], reason: Any, stop_reason: Any, output: Any
    ) -> None:
        try:
            finish_reason = conversion.finish_reason(reason, stop_reason)
        except (EngineError, ConstraintError) as error:
            self.sink.fail(error)
            return
        counts = self._prompt_counts()
        counts.kv_transfer_params = output.kv_transfer_params
        delta = CompletionDelta(text, token_ids, finish_reason, stop_reason, counts)
        if self.logprobs is not None and output.new_logprobs is not None:
            delta.logprob_arrays = _arrays(output, self._columns)
        self.sink.send(delta)

    def _prompt_counts(self) -> TokenCounts:
        return TokenCounts(
            self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            image_tokens=self.image_tokens,
            audio_tokens=self.audio_tokens,
            transferred_tokens=self.transferred_tokens,
        )


def _media_tokens(request: Any) -> tuple[int, int]:
    """Prompt tokens that stand for images, and for audio."""
    if not request.mm_features:
        return 0, 0
    counts = Counter[str]()
    for feature in request.mm_features:
        place = feature.mm_position
        # The audio of a model with an encoder of its own is beside the prompt
        if place.offset + place.length <= len(request.prompt_token_ids):
            counts[feature.modality] += place.get_num_embeds()
    return counts["image"], counts["audio"]


class DeltaCollector:
    """Replaces the queue of vLLM's OutputProcessor and forwards each output immediately."""

    def __init__(self, sink: DeltaSink, request: Any) -> None:
        self._sink = sink
        self._params = request.sampling_params
        self._media_tokens = _media_tokens(request)
        self.request_id = request.request_id
        self.stats: Any = None  # vLLM's PrefillStats, once it is known

    def put(self, output: Any) -> None:
        """Handle a RequestOutput, or the exception that ends the request."""
        if isinstance(output, Exception):
            self._sink.fail(conversion.translated(output, self._params))
            return
        try:
            delta = conversion.delta(output)
            if delta.counts is not None:
                self._count(delta.counts)
            elif self._sink.counts_prompt:
                counts = conversion.prompt_counts(output)
                self._count(counts)
                self._sink.count_prompt(counts)
            self._sink.send(delta)
        except (EngineError, ConstraintError) as error:
            self._sink.fail(error)

    def _count(self, counts: TokenCounts) -> None:
        counts.image_tokens, counts.audio_tokens = self._media_tokens
        if self.stats is not None and kv_transfer.has_transfer(self._params):
            found = kv_transfer.token_counts(self.stats)
            counts.cached_tokens, counts.transferred_tokens = found
