"""Limits concurrent requests, in the server and for each model. Excess requests wait in queues.

`permit` gives them to requests, whose streams or calls run within the slots that were granted.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

from openai_frontend.admission.queue import (
    ANONYMOUS,
    NO_LIMITS,
    ConcurrencyLimits,
    QueueKey,
    QueueMetrics,
    WaitQueue,
)
from openai_frontend.errors import GatewayError, ServerDraining
from openai_frontend.generation import CompletionDelta

Deltas = AsyncGenerator[list[CompletionDelta], None]
Bursts = AsyncGenerator[list[tuple[int, list[CompletionDelta]]], None]

# Fills an engine's batches, leaves room for other calls, and bounds the memory of one call.
MAX_PARALLEL = 128

Burst = TypeVar("Burst")
Item = TypeVar("Item")
Result = TypeVar("Result")


class LimitedModel(Protocol):
    """The properties of a model that the limiter needs."""

    @property
    def model_name(self) -> str:
        """Triton's name, which aliases and versions share."""

    @property
    def concurrency_limits(self) -> ConcurrencyLimits:
        """The limits that the operator sets for this model."""


class ConcurrencyLimiter:
    """The server's slots for running requests. Each model has its own queue; models with waiting
    requests take turns.
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
        self.max_concurrent_requests = max_concurrent_requests
        self.max_queue_size = max_queue_size
        self.queue_timeout_s = queue_timeout_s
        self.metrics = metrics
        self.running = 0
        self.unreleased = 0  # cancelled requests that Triton still has
        self.draining = False
        # Called with the name of a sleeping model that a request needs
        self.wake: Callable[[str], None] = lambda _: None
        self._slots = _Slots(self)
        # The models for whose slots requests wait, the next one first
        self.contended: OrderedDict[ModelSlots, None] = OrderedDict()

    @property
    def queued(self) -> int:
        """Requests that wait, for all models. Thread-safe."""
        return sum(len(slots.queue) for slots in [*self.contended])

    def slots_for(self, model: LimitedModel) -> "ModelSlots":
        """The slots for requests to a model."""
        return self.slots(model.model_name, model.concurrency_limits)

    def slots(self, model_name: str, limits: ConcurrencyLimits) -> "ModelSlots":
        """Like `slots_for`, by name. Takes the new limits of a model that was loaded again."""
        slots = self._slots[model_name]
        slots.limits = limits
        return slots

    def retain(self, model_name: str, input_bytes: int) -> None:
        """A cancelled request keeps its slot until Triton releases it: it may still run."""
        self._count_unreleased(model_name, 1)

    def release(self, model_name: str, input_bytes: int) -> None:
        """Triton has released a cancelled request."""
        self._count_unreleased(model_name, -1)
        self.grant_free_slots()

    def _count_unreleased(self, model_name: str, more: int) -> None:
        slots = self._slots[model_name]
        self.unreleased += more
        slots.unreleased += more
        if self.metrics is not None:
            self.metrics.unreleased_changed(model_name, slots.unreleased)

    def close(self, model_name: str, wake_s: float | None) -> None:
        """Let requests for a sleeping model wait; the first one wakes it."""
        slots = self._slots[model_name]
        slots.closed, slots.wake_s = True, wake_s

    def open(self, model_name: str) -> None:
        """Let requests continue: the model is awake."""
        slots = self._slots[model_name]
        if slots.closed:
            slots.closed, slots.wake_s = False, None
            self.grant_free_slots()

    def reject(self, model_name: str, error: GatewayError) -> None:
        """Reject the requests that wait for a model that cannot be woken."""
        self._slots[model_name].queue.reject_all(lambda: error)

    def drain(self) -> None:
        """Start no more requests and reject those that wait. Running requests finish."""
        self.draining = True
        for slots in self.contended:
            slots.queue.reject_all()

    def enqueue(self, slots: "ModelSlots") -> None:
        """Requests wait for this model's slots."""
        self.contended.setdefault(slots)

    def grant_free_slots(self) -> None:
        """Give free slots to waiting requests, one model after another."""
        served = bool(self.contended)
        while served:
            served = False
            for slots in [*self.contended]:
                if not slots.queue:
                    del self.contended[slots]
                elif slots.free():
                    slots.grant_next()
                    self.contended.move_to_end(slots)
                    served = True


class _Slots(dict[str, "ModelSlots"]):
    """By the model's name, made at first use."""

    def __init__(self, server: ConcurrencyLimiter) -> None:
        super().__init__()
        self._server = server

    def __missing__(self, model_name: str) -> "ModelSlots":
        slots = self[model_name] = ModelSlots(self._server, model_name)
        return slots


class ModelSlots:
    """A model's share of the server's slots, and the queue for them."""

    def __init__(self, server: ConcurrencyLimiter, model_name: str) -> None:
        self.limits = NO_LIMITS
        self.running = 0
        self.unreleased = 0  # cancelled requests that Triton still has
        self.closed = False  # the model sleeps
        self.wake_s: float | None = None  # how long its last wake took
        self._model_name = model_name
        self.queue = WaitQueue(
            model_name,
            describe_load=self._describe_load,
            give_back=self.release,
            known_wait_s=lambda: self.wake_s,
            metrics=server.metrics,
        )
        self._server = server

    def check(self, key: QueueKey = ANONYMOUS) -> None:
        """Raise QueueFull or ServerDraining before a request that cannot even wait costs work."""
        if self._server.draining:
            raise ServerDraining
        if self.closed or not self._unused:
            self.queue.check(key, self._max_queue_size)

    async def acquire(
        self, wanted: int, key: QueueKey = ANONYMOUS, *, timeout_s: float | None = None
    ) -> int:
        """Wait for a slot, then take up to `wanted` and return their number, at least one. The
        caller releases them.

        Raises QueueFull, QueueTimeout or ServerDraining. `timeout_s` can only shorten the model's
        timeout.
        """
        if self._server.draining:
            raise ServerDraining
        free, contended = 0 if self.closed else self._unused, self._server.contended
        if free and self in contended:  # the limits were raised meanwhile
            self._server.grant_free_slots()
            free = self.free()
        if free and self not in contended:
            return self._take(1 if wanted == 1 else min(wanted, MAX_PARALLEL, free))
        self._server.enqueue(self)
        if self.closed:
            self._server.wake(self._model_name)
        return await self.queue.wait(
            wanted, key, max_size=self._max_queue_size, timeout_s=self._timeout_s(timeout_s)
        )

    def release(self, granted: int) -> None:
        """Free slots that `acquire` granted."""
        self.running -= granted
        self._server.running -= granted
        if self._server.contended:
            self._server.grant_free_slots()

    def grant_next(self) -> None:
        """Give slots to the next waiting request. At least one must wait."""
        self.queue.serve(self._grant)

    def free(self) -> int:
        """Free slots: 0 if limits were lowered below what runs, or if the model sleeps."""
        return 0 if self.closed else self._unused

    @property
    def _unused(self) -> int:
        server, own = self._server, self.limits.max_concurrent_requests
        free = server.max_concurrent_requests - server.running - server.unreleased
        if own is not None:
            free = min(free, own - self.running - self.unreleased)
        return free if free > 0 else 0

    def _grant(self, wanted: int) -> int:
        return self._take(min(wanted, MAX_PARALLEL, self.free()))

    def _take(self, granted: int) -> int:
        self.running += granted
        self._server.running += granted
        return granted

    @property
    def _max_queue_size(self) -> int:
        own = self.limits.max_queue_size
        size = self._server.max_queue_size if own is None else own
        return size + self._unused if self.closed else size

    def _timeout_s(self, requested_s: float | None) -> float:
        own_s = self.limits.queue_timeout_s
        max_s = self._server.queue_timeout_s if own_s is None else own_s
        return max_s if requested_s is None else min(requested_s, max_s)

    def _describe_load(self) -> str:
        if self.closed:
            return "The model sleeps and is being woken"
        own, server = self.limits.max_concurrent_requests, self._server
        if own is not None and self.running + self.unreleased >= own:
            load = _load(self.running, self.unreleased)
            return f"The model is at capacity: {load}, limit {own}"
        load = _load(server.running, server.unreleased)
        return f"The server is at capacity: {load}, limit {server.max_concurrent_requests}"


def _load(running: int, unreleased: int) -> str:
    cancelled = f" and {unreleased} cancelled but not yet released by Triton" if unreleased else ""
    return f"{running} requests running{cancelled}"


async def merge_streams(
    streams: Sequence[AsyncGenerator[Burst, None]], max_parallel: int | None = None
) -> AsyncGenerator[list[tuple[int, Burst]], None]:
    """Bursts that arrived since the last step, each with its stream's index.

    Runs `max_parallel` streams at the same time, in order; None runs all. The first failure ends
    all streams, after the bursts that preceded it. Closing this generator closes every stream.
    """
    mailbox = _Mailbox[Burst](streams, max_parallel or len(streams))
    try:
        while (bursts := await mailbox.take()) is not None:
            yield bursts
    finally:
        await mailbox.close()


class _Mailbox(Generic[Burst]):
    """Collects bursts from a task per running stream; the output's length bounds its size."""

    def __init__(self, streams: Sequence[AsyncGenerator[Burst, None]], max_parallel: int) -> None:
        self._waiting = iter(enumerate(streams))
        self._bursts: list[tuple[int, Burst]] = []
        self._failure: BaseException | None = None
        self._wake = asyncio.Event()
        self._pumps = {asyncio.ensure_future(self._run_next_streams()) for _ in range(max_parallel)}
        self._running = set(self._pumps)
        for pump in self._pumps:
            pump.add_done_callback(self._ended)

    async def _run_next_streams(self) -> None:
        for index, stream in self._waiting:
            await self._pump(index, stream)

    async def _pump(self, index: int, stream: AsyncGenerator[Burst, None]) -> None:
        async with aclosing(stream):
            async for burst in stream:
                self._bursts.append((index, burst))
                self._wake.set()

    def _ended(self, pump: "asyncio.Task[None]") -> None:
        self._running.discard(pump)
        if not pump.cancelled() and self._failure is None:
            self._failure = pump.exception()
        self._wake.set()

    async def take(self) -> list[tuple[int, Burst]] | None:
        """Wait for bursts and return all that arrived; None once every stream has ended."""
        while not self._bursts and self._failure is None and self._running:
            self._wake.clear()
            await self._wake.wait()
        bursts, self._bursts = self._bursts, []
        if bursts:
            return bursts
        if self._failure is not None:
            raise self._failure
        return None

    async def close(self) -> None:
        """Cancel running streams and wait for their cleanup."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


async def gather_bounded(
    work: Callable[[Item], Awaitable[Result]], items: Sequence[Item], max_parallel: int
) -> list[Result]:
    """Results of `work` in the order of `items`. The first failure cancels the rest."""
    if len(items) == 1:  # no task
        return [await work(items[0])]
    results: dict[int, Result] = {}
    waiting = iter(enumerate(items))

    async def run_next_items() -> None:
        for index, item in waiting:
            results[index] = await work(item)

    await _all_or_none([asyncio.ensure_future(run_next_items()) for _ in range(max_parallel)])
    return [results[index] for index in range(len(items))]


async def _all_or_none(tasks: "Sequence[asyncio.Task[None]]") -> None:
    """Wait for all tasks. If one fails or the caller is cancelled, cancel the others."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
