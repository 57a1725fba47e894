"""How many generations run at the same time, in the server and in each model, and who waits."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from openai_frontend.admission.limits import ANONYMOUS, NO_LIMITS, ConcurrencyLimits, QueueKey
from openai_frontend.admission.wait_queue import QueueMetrics, WaitQueue
from openai_frontend.errors import ServerDraining
from openai_frontend.generation import CompletionDelta
from openai_frontend.serving.admission.fan_in import merge_streams

Deltas = AsyncGenerator[list[CompletionDelta], None]
Bursts = AsyncGenerator[list[tuple[int, list[CompletionDelta]]], None]

# Enough to fill an engine's batches; one call leaves room for others, and its memory is bounded.
MAX_PARALLEL = 128


class LimitedModel(Protocol):
    """What must be known of a model."""

    @property
    def model_name(self) -> str:
        """The same for all of its names."""

    @property
    def concurrency_limits(self) -> ConcurrencyLimits:
        """The operator's."""


class ConcurrencyLimiter:
    """The server's places. Each model has a queue of its own; models that are waited for take
    turns.
    """

    def __init__(
        self,
        max_concurrent_requests: int,
        *,
        max_queue_size: int = 0,
        queue_timeout_s: float = 30.0,
        metrics: QueueMetrics | None = None,
    ) -> None:
        """`max_queue_size` requests may wait for each model unless the model sets its own limit."""
        self.set_limits(max_concurrent_requests, max_queue_size, queue_timeout_s)
        self.metrics = metrics
        self.running = 0
        self.unreleased = 0  # cancelled requests that Triton still has
        self.draining = False
        self._slots: dict[str, ModelSlots] = {}
        self._waited_for: OrderedDict[ModelSlots, None] = OrderedDict()  # in turns

    def set_limits(
        self, max_concurrent_requests: int, max_queue_size: int, queue_timeout_s: float
    ) -> None:
        """Other ones; where more run already they end as they would have, and who waits goes on to
        wait as it was told.
        """
        self.max_concurrent_requests = max_concurrent_requests
        self.max_queue_size = max_queue_size
        self.queue_timeout_s = queue_timeout_s

    def slots_for(self, model: LimitedModel) -> "ModelSlots":
        """The places for requests to a model."""
        return self.slots(model.model_name, model.concurrency_limits)

    def slots(self, model_name: str, limits: ConcurrencyLimits) -> "ModelSlots":
        """The same, by name; a model that was loaded again may have other limits."""
        slots = self._of(model_name)
        slots.limits = limits
        return slots

    def _of(self, model_name: str) -> "ModelSlots":
        slots = self._slots.get(model_name)
        if slots is None:
            slots = self._slots[model_name] = ModelSlots(self, model_name)
        return slots

    def retain(self, model_name: str, input_bytes: int) -> None:
        """A cancelled request keeps a place until Triton releases it: the model may go on."""
        self._count_unreleased(model_name, 1)

    def release(self, model_name: str, input_bytes: int) -> None:
        """Triton has released it."""
        self._count_unreleased(model_name, -1)
        self.grant_free_slots()

    def _count_unreleased(self, model_name: str, more: int) -> None:
        slots = self._of(model_name)
        self.unreleased += more
        slots.unreleased += more
        if self.metrics is not None:
            self.metrics.unreleased_changed(model_name, slots.unreleased)

    def drain(self) -> None:
        """Nothing begins from now on, and who waits is told at once. What runs goes on."""
        self.draining = True
        for slots in self._waited_for:
            slots.line.reject_all()

    def enqueue(self, slots: "ModelSlots") -> None:
        """Somebody waits for this model."""
        self._waited_for.setdefault(slots)

    def grant_free_slots(self) -> None:
        """Gives the places that are free to those who wait, whenever one becomes free."""
        if not self._waited_for:
            return
        served = True
        while served:
            served = False
            for slots in [*self._waited_for]:
                if not slots.line:
                    del self._waited_for[slots]
                elif slots.free():
                    slots.grant_next()
                    self._waited_for.move_to_end(slots)
                    served = True


class ModelSlots:
    """A model's places, which are some of the server's, and the line for them."""

    def __init__(self, server: ConcurrencyLimiter, model_name: str) -> None:
        self.limits = NO_LIMITS
        self.running = 0
        self.unreleased = 0  # cancelled requests that Triton still has
        self.line = WaitQueue(
            model_name, describe_load=self._stands, give_back=self.release, metrics=server.metrics
        )
        self._server = server

    async def bursts(self, generations: Sequence[Deltas], turn: QueueKey = ANONYMOUS) -> Bursts:
        """The deltas of all, with each one's index; they count until this generator is closed.

        More of them than there is room for run a few at a time.
        """
        at_once = await self.acquire(len(generations), turn)
        try:
            if len(generations) == 1:  # no task, no queue: the bursts pass through
                async with aclosing(generations[0]) as generation:
                    async for deltas in generation:
                        yield [(0, deltas)]
                return
            async with aclosing(merge_streams(generations, at_once)) as bursts:
                async for burst in bursts:
                    yield burst
        finally:
            self.release(at_once)

    def check(self, turn: QueueKey = ANONYMOUS) -> None:
        """Raises where a request could not even wait: before it has cost anything."""
        self._check_draining()
        if not self.free():
            self.line.check(turn, self._longest)

    async def acquire(
        self, wanted: int, turn: QueueKey = ANONYMOUS, *, timeout_s: float | None = None
    ) -> int:
        """How many of `wanted` requests may run at a time, once there is a place: at least one, as
        many as fit; whoever takes them gives them back.

        Raises QueueFull, QueueTimeout or ServerDraining. `timeout_s` may be shorter than the
        model's.
        """
        self._check_draining()
        if self.line and self.free():  # the limits have been raised since
            self._server.grant_free_slots()
        if not self.line and self.free():
            return self._grant(wanted)
        self._server.enqueue(self)
        return await self.line.wait(
            wanted, turn, max_size=self._longest, timeout_s=self._timeout_s(timeout_s)
        )

    def release(self, granted: int) -> None:
        """These places are free."""
        self.running -= granted
        self._server.running -= granted
        self._server.grant_free_slots()

    def grant_next(self) -> None:
        """The next in turn gets its places; there must be one."""
        self.line.serve(self._grant)

    def free(self) -> int:
        """Places that nobody has; limits may have been lowered since."""
        server, own = self._server, self.limits.max_concurrent_requests
        free = server.max_concurrent_requests - server.running - server.unreleased
        if own is not None:
            free = min(free, own - self.running - self.unreleased)
        return max(0, free)

    def _grant(self, wanted: int) -> int:
        granted = min(wanted, MAX_PARALLEL, self.free())
        self.running += granted
        self._server.running += granted
        return granted

    @property
    def _longest(self) -> int:
        own = self.limits.max_queue_size
        return self._server.max_queue_size if own is None else own

    def _timeout_s(self, asked_s: float | None) -> float:
        own_s = self.limits.queue_timeout_s
        longest_s = self._server.queue_timeout_s if own_s is None else own_s
        return longest_s if asked_s is None else min(asked_s, longest_s)

    def _check_draining(self) -> None:
        if self._server.draining:
            raise ServerDraining

    def _stands(self) -> str:
        own, server = self.limits.max_concurrent_requests, self._server
        running = self.running + self.unreleased
        if own is not None and running >= own:
            return f"The model runs {running} requests, and takes {own}"
        running = server.running + server.unreleased
        return f"The server runs {running} requests, and takes {server.max_concurrent_requests}"
