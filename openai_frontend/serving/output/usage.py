"""Which choices of a job have finished, and the tokens that its client has received."""

from collections.abc import Mapping, Sequence
from typing import Any

from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import CompletionDelta, UsageCounter
from openai_frontend.serving.output.output_parsing import ParsedDelta
from schemas.chat_completions import FinishReason
from schemas.usage import CompletionTokensDetails, CompletionUsage, PromptTokensDetails

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class CompletionProgress:
    """Finish reasons and token counts of a job's choices.

    Add every delta that has either: a stream may report the usage so far.
    """

    def __init__(self, prompt_tokens: Sequence[int], *, n: int) -> None:
        """`prompt_tokens` has one count per choice; `n` choices share a prompt."""
        self._n = n
        self._choices = [UsageCounter(tokens) for tokens in prompt_tokens]
        self._reasoning_tokens = 0
        self._metrics: dict[int, Mapping[str, int | float]] = {}  # by choice, if requested

    @property
    def finished(self) -> bool:
        """True once every choice has its finish reason."""
        return all(choice.finished for choice in self._choices)

    def add(self, choice: int, delta: CompletionDelta) -> FinishReason | None:
        """Count a delta. Returns the finish reason with the last delta of a choice."""
        self._choices[choice].add((delta,))
        counts = delta.counts
        if counts is not None and counts.metrics:
            self._metrics[choice] = counts.metrics
        calls = None
        if isinstance(delta, ParsedDelta):
            self._reasoning_tokens += delta.reasoning_tokens
            calls = delta.call_reason
        if delta.finish_reason is None:
            return None
        reason = _FINISH_REASONS.get(delta.finish_reason)
        if reason is None:
            raise InferenceFailed(f"unknown finish reason {delta.finish_reason!r} from the engine")
        return calls or reason

    def check_finished(self) -> None:
        """Raise InferenceFailed if a stream ended without a finish reason."""
        if not self.finished:
            raise InferenceFailed("the model's output ended without a finish reason")

    def usage(self) -> CompletionUsage:
        """Counts so far. A prompt counts once, however many choices it has."""
        prompt_tokens = sum(choice.prompt_tokens for choice in self._choices[:: self._n])
        cached_tokens = sum(choice.cached_tokens for choice in self._choices[:: self._n])
        completion_tokens = sum(choice.completion_tokens for choice in self._choices)
        return CompletionUsage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=self._reasoning_tokens,
                accepted_prediction_tokens=0,
                rejected_prediction_tokens=0,
            ),
            **self._performance(),
        )

    def _performance(self) -> dict[str, Any]:
        """Engine metrics, one mapping for each choice that reported them."""
        metrics = [dict(self._metrics[choice]) for choice in sorted(self._metrics)]
        return {"performance_metrics": metrics} if metrics else {}
