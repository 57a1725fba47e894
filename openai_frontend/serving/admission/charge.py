"""The tokens of a request's work, charged to its key. Work without token counts costs nothing."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from openai_frontend.auth.rate_limit import DEFAULT_OUTPUT_TOKENS, Reservation
from openai_frontend.generation import CompletionDelta, GenerationRequest
from openai_frontend.media.modalities import AudioSupport, ImageSupport, SpeechRequest
from openai_frontend.pooling import EmbeddingResult, EmbedRequest, ScorePairRequest, ScoreResult
from openai_frontend.serving.admission.model import Describes, Work

Pooled = TypeVar("Pooled", EmbeddingResult, ScoreResult)
Pooling = TypeVar("Pooling", EmbedRequest, ScorePairRequest)
Results = Coroutine[Any, Any, list[Pooled]]


class Charge:
    """Charges one request's work in a model to a reservation.

    The first work of a request is refused if the key has too few tokens. Other work of the same
    request (more choices, more texts) may overdraw the key, so that no request fails half-way.
    """

    __slots__ = ("_model", "_reservation")

    def __init__(self, model: Describes, reservation: Reservation) -> None:
        self._model = model
        self._reservation = reservation

    def reserve(self, first: Work) -> None:
        """Reserve what the first work may use. Raises RateLimited."""
        self._reservation.take(_cost(self._model, first))

    def _use(self, work: Work) -> int:
        """The tokens to settle at the end: those that `reserve` took, or the work's own."""
        return self._reservation.use() or self._reservation.borrow(_cost(self._model, work))

    async def generation(
        self, request: GenerationRequest, deltas: AsyncGenerator[list[CompletionDelta], None]
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """Charge a cancelled generation as reserved, or as counted if that is more, and a failed
        one as counted.
        """
        usage, reserved = request.usage, self._use(request)
        failed = True
        try:
            async for burst in deltas:
                yield burst
            failed = False
        except (asyncio.CancelledError, GeneratorExit):
            failed = False
            raise
        finally:
            await deltas.aclose()
            prompt_tokens = usage.prompt_tokens or _prompt_tokens(request)
            charged = prompt_tokens * request.sequences + usage.completion_tokens
            if not (failed or usage.finished):
                charged = max(charged, reserved)
            self._reservation.settle(reserved=reserved, used=charged)

    async def pooling(
        self, works: Sequence[Pooling], run: Callable[[Sequence[Pooling]], Results[Pooled]]
    ) -> list[Pooled]:
        """Run the works, and charge results their tokens, a cancelled request what it reserved, and
        a failed one nothing.
        """
        costs = list(map(self._use, works))
        reserved, used = sum(costs), 0
        try:
            pooled = await run(works)
            counted = zip(pooled, costs, strict=True)
            used = sum(result.prompt_tokens or cost for result, cost in counted)
        except (asyncio.CancelledError, GeneratorExit):
            used = reserved
            raise
        finally:
            self._reservation.settle(reserved=reserved, used=used)
        return pooled

    async def speech(
        self, request: SpeechRequest, parts: AsyncGenerator[memoryview, None]
    ) -> AsyncGenerator[memoryview, None]:
        """Charge the text, and nothing if it fails before the first sample."""
        reserved, used = self._use(request), 0
        try:
            async with aclosing(parts):
                async for samples in parts:
                    used = reserved
                    yield samples
        except (asyncio.CancelledError, GeneratorExit):
            used = reserved
            raise
        finally:
            self._reservation.settle(reserved=reserved, used=used)


def _cost(model: Describes, work: Work) -> int:
    """Tokens that the work may use."""
    prompt_tokens = _prompt_tokens(work)
    if not isinstance(work, ScorePairRequest | SpeechRequest) and work.images:
        images = model.facts.images or ImageSupport()
        prompt_tokens += len(work.images) * (images.max_tokens_per_image or 0)
    if isinstance(work, GenerationRequest) and work.audio_files:
        audio = model.facts.audio or AudioSupport()
        prompt_tokens += len(work.audio_files) * (audio.max_tokens_per_audio or 0)
    if not isinstance(work, GenerationRequest):
        return prompt_tokens
    return work.sequences * (prompt_tokens + _answer_tokens(model, work, prompt_tokens))


def _answer_tokens(model: Describes, request: GenerationRequest, prompt_tokens: int) -> int:
    """Few answers fill the context."""
    max_tokens, context = request.sampling_params.max_tokens, model.facts.max_model_len
    if max_tokens is None:
        return DEFAULT_OUTPUT_TOKENS
    fills = context is not None and prompt_tokens + max_tokens >= context
    return min(max_tokens, DEFAULT_OUTPUT_TOKENS) if fills else max_tokens


def _prompt_tokens(work: Work) -> int:
    """Prompt tokens; for text that the backend tokenizes, an estimate of four characters each."""
    if isinstance(work, SpeechRequest):
        return len(work.text) // 4 + 1
    if isinstance(work, ScorePairRequest) or work.prompt_token_ids is not None:
        return len(work.prompt_token_ids or ())
    return len(work.prompt or "") // 4
