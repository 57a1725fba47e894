"""Admission of requests to models, in one order for every endpoint and protocol.

The model is loaded and kept loaded first: its tokenizer and its tensors describe the work. Then
`Admission.enter` charges the caller's key, waits in the model's queue, and gives a permit, without
which nothing runs in a model.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from openai_frontend.admission.queue import ANONYMOUS, QueueKey
from openai_frontend.generation import GenerationRequest
from openai_frontend.media.modalities import SpeechRequest
from openai_frontend.pooling import EmbeddingResult, EmbedRequest, ScorePairRequest, ScoreResult
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.admission.charge import Charge
from openai_frontend.serving.admission.concurrency_limit import (
    Bursts,
    ConcurrencyLimiter,
    Deltas,
    LimitedModel,
    ModelSlots,
    merge_streams,
)
from openai_frontend.serving.admission.model import Generates, Waveform, Work

Input = TypeVar("Input", EmbedRequest, ScorePairRequest)

# Reads the deltas of a request, such as a parser
ReadDeltas = Callable[[Deltas, GenerationRequest], Deltas]


def queue_key(context: RequestContext, priority: int = 0) -> QueueKey:
    """The caller's place in queues: requests of one key wait for each other, and their priority is
    at most the key's. Requests without a key share one place.
    """
    principal = context.principal
    if principal is not None:
        return QueueKey(principal.key.digest, principal.priority(priority))
    return QueueKey(priority=priority) if priority else ANONYMOUS


class Admission:
    """Admits requests to models. `RequestContext` names the caller; no protocol is known here."""

    def __init__(self, limiter: ConcurrencyLimiter) -> None:
        self._limiter = limiter

    def check(self, context: RequestContext, model: LimitedModel, priority: int = 0) -> None:
        """Raise QueueFull or ServerDraining before a request that cannot even wait costs work."""
        self._limiter.slots_for(model).check(queue_key(context, priority))

    def enter(
        self,
        context: RequestContext,
        model: Generates,
        first: Work | None = None,
        *,
        wanted: int = 1,
        priority: int = 0,
    ) -> "Permit":
        """A permit for up to `wanted` requests to the model at a time: `async with` it.

        `first` is reserved on the caller's key before the request waits; other work is charged as
        it begins. Raises RateLimited, QueueFull, QueueTimeout or ServerDraining.
        """
        slots = self._limiter.slots_for(model)
        return Permit(context, model, slots, first, wanted, queue_key(context, priority))

    def wait(
        self,
        context: RequestContext,
        model: LimitedModel,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> "Slot":
        """A slot for one request whose tokens are not counted: `async with` it. `timeout_s` can
        only shorten the model's queue timeout.
        """
        return Slot(self._limiter.slots_for(model), 1, queue_key(context, priority), timeout_s)

    async def bursts(
        self,
        context: RequestContext,
        model: Generates,
        requests: Sequence[GenerationRequest],
        read: ReadDeltas | None = None,
    ) -> Bursts:
        """Deltas of all requests, each burst with its request's index. Runs as many at a time as
        slots were granted, and keeps the slots until this generator is closed.
        """
        first = requests[0]
        wanted, priority = len(requests), first.priority
        async with self.enter(context, model, first, wanted=wanted, priority=priority) as permit:
            generations = [permit.generate(each) for each in requests]
            if read is not None:
                generations = list(map(read, generations, requests))
            del first, requests  # with the media of those that have ended
            if wanted == 1:  # no task, no queue: the bursts pass through
                try:
                    async for deltas in generations[0]:
                        yield [(0, deltas)]
                finally:
                    await generations[0].aclose()
                return
            async with aclosing(merge_streams(generations, permit.granted)) as bursts:
                async for burst in bursts:
                    yield burst


class Slot:
    """Slots of a model, taken while the `async with` block runs."""

    __slots__ = ("_key", "_slots", "_timeout_s", "_wanted", "granted")

    def __init__(
        self, slots: ModelSlots, wanted: int, key: QueueKey, timeout_s: float | None = None
    ) -> None:
        self._slots = slots
        self._wanted = wanted
        self._key = key
        self._timeout_s = timeout_s
        self.granted = 0  # requests that may run at a time

    async def __aenter__(self) -> "Slot":
        self.granted = await self._slots.acquire(self._wanted, self._key, timeout_s=self._timeout_s)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._slots.release(self.granted)


class Permit(Slot):
    """Runs a request's work in its model, with the key's priority and caches, at the key's cost."""

    __slots__ = ("_charge", "_context", "_first", "_model")

    def __init__(
        self,
        context: RequestContext,
        model: Generates,
        slots: ModelSlots,
        first: Work | None,
        wanted: int,
        key: QueueKey,
    ) -> None:
        super().__init__(slots, wanted, key)
        self._context = context
        self._model = model
        self._first = first
        reservation = context.reservation
        counts = reservation is not None and reservation.limits_tokens
        self._charge = Charge(model, reservation) if reservation is not None and counts else None

    async def __aenter__(self) -> "Permit":
        if self._charge is not None and self._first is not None:
            self._charge.reserve(self._first)
        self._first = None
        self.granted = await self._slots.acquire(self._wanted, self._key)
        return self

    def generate(self, request: GenerationRequest) -> Deltas:
        """Generate as `ServedModel.generate`."""
        caller = self._context.principal
        if caller is None:
            return self._model.generate(request)
        priority, owner = caller.priority(request.priority), caller.cache_owner
        if priority != request.priority or owner is not None:  # most models get no priority
            request = replace(request, priority=priority, cache_owner=owner)
        deltas = self._model.generate(request)
        return deltas if self._charge is None else self._charge.generation(request, deltas)

    async def embed(self, requests: Sequence[EmbedRequest]) -> list[EmbeddingResult]:
        """Embed as `ServedModel.embed`."""
        owned = self._owned(requests)
        if self._charge is None:
            return await self._model.embed(owned)
        return await self._charge.pooling(owned, self._model.embed)

    async def score(self, requests: Sequence[ScorePairRequest]) -> list[ScoreResult]:
        """Score as `ServedModel.score`."""
        owned = self._owned(requests)
        if self._charge is None:
            return await self._model.score(owned)
        return await self._charge.pooling(owned, self._model.score)

    def _owned(self, requests: Sequence[Input]) -> Sequence[Input]:
        caller = self._context.principal
        owner = None if caller is None else caller.cache_owner
        if owner is None:
            return requests
        return [replace(each, cache_owner=owner) for each in requests]

    def speak(self, request: SpeechRequest) -> Waveform:
        """Speak as `ServedModel.speak`."""
        parts = self._model.speak(request)
        return parts if self._charge is None else self._charge.speech(request, parts)
