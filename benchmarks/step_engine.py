"""An engine for what the shipped mock does not offer: several tokens a step, and vectors that cost
nothing to make.

A class of the user's own as any other, by its name in config.pbtxt. Steps as the mock does: all
streams together, as fast as the loop goes.
"""

import array
import asyncio

from openai_frontend.engines.engine import DeltaSink, Engine, EngineStats, ModelFacts, ModelSpec
from openai_frontend.generation import CompletionDelta, GenerationRequest, TokenCounts
from openai_frontend.pooling import EmbeddingResult, EmbedRequest

_TEXT = " token"


class StepEngine(Engine):
    """`model.json`: tokens_per_step, dimensions, max_model_len, tokenizer."""

    def load(self, model: ModelSpec) -> ModelFacts:
        """Prepare the delta and the vector."""
        given = model.arguments
        self._step_tokens: int = given.get("tokens_per_step", 1)
        self._delta = _delta(self._step_tokens)
        size: int = given.get("dimensions", 8)
        self._vector = memoryview(array.array("f", [at / size for at in range(size)])).cast("B")
        self._running: dict[str, _Answer] = {}
        self._scheduled = False
        return ModelFacts(
            max_model_len=given.get("max_model_len", 4096),
            tokenizer=given.get("tokenizer"),
            tasks=("generate", "embed"),
            dimensions=size,
            description="a benchmark engine that returns configured tokens and vectors",
        )

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        """Begin the answer, whose length every request sets."""
        assert request.sampling_params.max_tokens is not None
        self._running[request.request_id] = _Answer(request, sink)
        self._schedule(asyncio.get_running_loop())

    async def embed(self, request: EmbedRequest) -> EmbeddingResult:
        """Return the prepared vector."""
        return EmbeddingResult(self._vector, len(request.prompt_token_ids or ()))

    def cancel(self, request_id: str) -> None:
        """Forget the request."""
        self._running.pop(request_id, None)

    def stats(self) -> EngineStats:
        """Count the running."""
        return EngineStats(running=len(self._running))

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._running and not self._scheduled:
            self._scheduled = True
            loop.call_later(0, self._step, loop)

    def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        for request_id, answer in list(self._running.items()):
            if answer.remaining > self._step_tokens:
                answer.remaining -= self._step_tokens
                answer.sink.send(self._delta)
            else:
                del self._running[request_id]
                answer.end()
        self._schedule(loop)


class _Answer:
    """One running request."""

    __slots__ = ("prompt_tokens", "remaining", "sink")

    def __init__(self, request: GenerationRequest, sink: DeltaSink) -> None:
        self.sink = sink
        self.remaining = request.sampling_params.max_tokens or 0
        self.prompt_tokens = len(request.prompt_token_ids or ())

    def end(self) -> None:
        """Send the last tokens."""
        delta = _delta(self.remaining)
        delta.finish_reason = "length"
        delta.counts = TokenCounts(
            prompt_tokens=self.prompt_tokens, completion_tokens=self.remaining
        )
        self.sink.send(delta)


def _delta(tokens: int) -> CompletionDelta:
    return CompletionDelta(text=_TEXT * tokens, token_ids=(0,) * tokens)
