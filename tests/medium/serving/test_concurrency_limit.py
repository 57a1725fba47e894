import asyncio
import time
from collections.abc import Awaitable
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openai_frontend.admission.queue import ConcurrencyLimits, QueueKey
from openai_frontend.errors import QueueFull, QueueTimeout, ServerDraining
from openai_frontend.generation import GenerationRequest
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.admission.concurrency_limit import (
    MAX_PARALLEL,
    Bursts,
    ConcurrencyLimiter,
    ModelSlots,
)
from openai_frontend.serving.admission.permit import Admission
from tests.cpu_time import budget
from tests.examples import scaled
from tests.fast.serving.fake_model import FakeModel

REQUEST = GenerationRequest(request_id="1")
A, B = QueueKey("a"), QueueKey("b")


def slots(limiter: ConcurrencyLimiter, name: str = "fake", **limits: Any) -> ModelSlots:
    return limiter.slots(name, ConcurrencyLimits(**limits))


async def began(*takes: Awaitable[int]) -> "list[asyncio.Task[int]]":
    """Start each call as a task and let it run until it waits or finishes."""
    tasks = [asyncio.ensure_future(acquire) for acquire in takes]
    await asyncio.sleep(0)
    return tasks


def bursts_of(limiter: ConcurrencyLimiter, model: Any, count: int = 1) -> Bursts:
    """The deltas of so many requests."""
    return Admission(limiter).bursts(RequestContext("r"), model, [REQUEST] * count)


async def test_request_beyond_the_limit_is_rejected_before_it_starts():
    """If every slot is in use and the queue has no room, the next request is rejected."""
    limiter = ConcurrencyLimiter(2)
    async with aclosing(bursts_of(limiter, FakeModel(), 2)) as two:
        await anext(two)
        third = FakeModel()

        with pytest.raises(QueueFull, match=r"server is at capacity: 2 .* limit 2; 0 queued"):
            await anext(bursts_of(limiter, third))

    assert third.requests == []


async def test_call_that_needs_more_slots_than_exist_completes():
    """It runs a few items at a time."""
    model = FakeModel()

    most, finished = 0, set()
    async for bursts in bursts_of(ConcurrencyLimiter(2), model, 5):
        most = max(most, model.open)
        finished |= {choice for choice, deltas in bursts if deltas[-1].finish_reason}

    assert (most, finished) == (2, {0, 1, 2, 3, 4})


async def test_finished_generation_releases_its_slot():
    limiter, model = ConcurrencyLimiter(1), FakeModel()
    own = slots(limiter)

    counts = [limiter.running async for _ in bursts_of(limiter, model)]

    assert counts == [1, 1]
    assert (limiter.running, own.running) == (0, 0)


async def test_failed_generation_releases_its_slot():
    limiter, model = ConcurrencyLimiter(1), FakeModel(failure=ValueError("broken"))

    with pytest.raises(ValueError, match="broken"):
        async for _ in bursts_of(limiter, model):
            pass

    assert limiter.running == 0


async def test_single_generation_passes_through_unchanged():
    """Each burst becomes choice 0 without an extra task."""
    model, tasks = FakeModel(), len(asyncio.all_tasks())

    bursts = [burst async for burst in bursts_of(ConcurrencyLimiter(1), model)]

    assert [choice for burst in bursts for choice, _ in burst] == [0] * len(bursts)
    assert tasks == len(asyncio.all_tasks())


async def test_model_slots_count_towards_the_server_limit():
    """Both limits apply; the other models share the remaining slots."""
    limiter = ConcurrencyLimiter(3)
    small = slots(limiter, "small", max_concurrent_requests=2)

    assert await small.acquire(5) == 2
    with pytest.raises(QueueFull, match=r"model is at capacity: 2 .* limit 2"):
        await small.acquire(1)
    assert await slots(limiter, "other").acquire(5) == 1
    with pytest.raises(QueueFull, match=r"server is at capacity: 3 "):
        slots(limiter, "other").check()

    assert slots(limiter, "small", max_concurrent_requests=2) is small
    small.release(2)
    assert (small.running, limiter.running) == (0, 1)


async def test_queue_is_first_in_first_out():
    """Later requests do not overtake queued ones."""
    own = slots(ConcurrencyLimiter(1, max_queue_size=2))
    await own.acquire(1)
    first, second = await began(own.acquire(1), own.acquire(1))
    own.release(1)
    with pytest.raises(QueueFull):  # the first has its slot, but its task has not run yet
        await asyncio.gather(own.acquire(1), own.acquire(1))

    assert await first == 1
    assert not second.done()
    own.release(1)
    assert await second == 1


async def test_queued_call_gets_the_slots_that_are_free_at_its_turn():
    """A call that asked for several slots may get fewer."""
    own = slots(ConcurrencyLimiter(3, max_queue_size=2))
    await own.acquire(3)
    several, one = await began(own.acquire(5, A), own.acquire(1, B))
    own.release(2)

    assert await several == 2
    own.release(1)
    assert await one == 1


async def test_one_call_gets_at_most_max_parallel_slots():
    """The remaining slots stay available to other calls."""
    assert await slots(ConcurrencyLimiter(1024)).acquire(2048) == MAX_PARALLEL


async def test_full_server_serves_the_queues_of_its_models_in_turn():
    """No model's queue blocks another's; the scheduler skips a model that is at its own limit."""
    limiter = ConcurrencyLimiter(2, max_queue_size=9)
    full = slots(limiter, "full", max_concurrent_requests=1)
    ones, others = slots(limiter, "one"), slots(limiter, "other")
    await full.acquire(1)
    await others.acquire(1)
    order: list[str] = []

    async def taken(name: str, own: ModelSlots) -> int:
        granted = await own.acquire(1)
        order.append(name)
        return granted

    waiting = await began(
        taken("full", full),
        *(taken("one", ones) for _ in range(3)),
        *(taken("other", others) for _ in range(2)),
    )
    assert limiter.queued == 6
    for own in (others, ones, others, ones, others):
        own.release(1)
        await asyncio.sleep(0)

    assert order == ["one", "other", "one", "other", "one"]
    full.release(1)
    await asyncio.gather(*waiting)
    assert limiter.queued == 0


async def test_key_with_many_queued_requests_does_not_block_other_keys():
    """The first request of another key runs after the next one. If the queue is full, it
    displaces the newest request of the key with many.
    """
    own = slots(ConcurrencyLimiter(1, max_queue_size=10))
    await own.acquire(1)
    many = await began(*(own.acquire(1, A) for _ in range(10)))
    with pytest.raises(QueueFull):
        own.check(A)
    own.check(B)
    (one,) = await began(own.acquire(1, B))

    with pytest.raises(QueueFull):
        await many[9]
    for each in (many[0], one, many[1]):
        own.release(1)
        assert await each == 1
    for each in many[2:9]:
        own.release(1)
        await each


async def test_simultaneous_arrivals_do_not_overfill_the_queue():
    """Each arrival displaces a different queued request."""
    own = slots(ConcurrencyLimiter(1, max_queue_size=4))
    await own.acquire(1)
    many = await began(*(own.acquire(1, A) for _ in range(4)))
    newcomers = await began(own.acquire(1, B), own.acquire(1, QueueKey("c")))

    assert len(own.queue) == 4
    await asyncio.wait(many[2:])
    assert [each.done() for each in many] == [False, False, True, True]
    own.release(1)
    for each in (many[0], *newcomers, many[1]):
        assert await each == 1
        own.release(1)


async def test_lower_priority_number_runs_first():
    """In a full queue, it displaces the last request."""
    own = slots(ConcurrencyLimiter(1, max_queue_size=1))
    await own.acquire(1)
    (late,) = await began(own.acquire(1, QueueKey("a", 5)))
    (usual,) = await began(own.acquire(1, QueueKey("a", 0)))
    with pytest.raises(QueueFull):
        own.check(QueueKey("b", 5))

    with pytest.raises(QueueFull):
        await late
    own.release(1)
    assert await usual == 1


async def test_queue_timeout_removes_the_request():
    """The request's own timeout applies if it is shorter than the model's."""
    own = slots(ConcurrencyLimiter(1, max_queue_size=2, queue_timeout_s=60), queue_timeout_s=0.02)
    await own.acquire(1)
    longer, shorter = await began(own.acquire(1, timeout_s=50), own.acquire(1, timeout_s=0.01))

    with pytest.raises(QueueTimeout, match=r"waited 0\.01 s .*: 1 .* limit 1; 1 queued"):
        await shorter
    with pytest.raises(QueueTimeout, match=r"waited 0\.02 s"):
        await longer
    assert len(own.queue) == 0
    own.release(1)
    assert await own.acquire(1) == 1


async def test_cancelled_caller_leaves_the_queue():
    """Its queue position becomes free."""
    own = slots(ConcurrencyLimiter(1, max_queue_size=1))
    await own.acquire(1)
    (gone,) = await began(own.acquire(1))
    gone.cancel()
    await asyncio.wait([gone])
    (next_one,) = await began(own.acquire(1))
    own.release(1)

    assert await next_one == 1


async def test_caller_cancelled_while_it_gets_a_slot_returns_the_slot():
    """The slot can arrive in the loop iteration of the cancellation, before or after it."""
    limiter = ConcurrencyLimiter(1, max_queue_size=3)
    own = slots(limiter)
    await own.acquire(1)
    before, after, last = await began(own.acquire(1), own.acquire(1), own.acquire(1))
    before.cancel()
    own.release(1)  # to `after`: `before` was cancelled
    after.cancel()

    assert await last == 1
    assert (limiter.running, len(own.queue)) == (1, 0)


async def test_draining_rejects_queued_and_new_requests():
    """Queued requests fail immediately; running requests finish."""
    limiter = ConcurrencyLimiter(1, max_queue_size=5)
    own = slots(limiter)
    await own.acquire(1)
    waiting = await began(own.acquire(1, A), own.acquire(1, B))
    limiter.drain()

    for each in waiting:
        with pytest.raises(ServerDraining):
            await each
    with pytest.raises(ServerDraining):
        await own.acquire(1)
    with pytest.raises(ServerDraining):
        own.check()
    own.release(1)
    assert limiter.running == 0


async def test_rejection_estimates_retry_after_from_the_queue_rate():
    """Without a known rate, the estimate is 1 second."""
    own = slots(ConcurrencyLimiter(1, max_queue_size=2))
    with pytest.raises(QueueFull) as unknown:
        await slots(ConcurrencyLimiter(1), max_concurrent_requests=0).acquire(1)
    await own.acquire(1)
    waiting = await began(own.acquire(1), own.acquire(1))
    await asyncio.sleep(0.3)
    with pytest.raises(QueueFull) as refused:
        own.check()

    assert unknown.value.retry_after_s == 1
    assert refused.value.retry_after_s is not None
    assert 0.6 <= refused.value.retry_after_s < 10
    for each in waiting:
        own.release(1)
        await each


async def test_raised_limit_of_a_model():
    """The next request gives waiting requests the slots that a reloaded model has gained."""
    limiter = ConcurrencyLimiter(3, max_queue_size=2)
    own = slots(limiter, max_concurrent_requests=1)
    await own.acquire(1)
    (waiting,) = await began(own.acquire(1))
    assert slots(limiter, max_concurrent_requests=3) is own

    assert await own.acquire(1) == 1
    assert await waiting == 1


async def test_cancelled_requests_keep_their_slots_until_triton_releases_them():
    """They count towards the limits of the server and the model. Queued requests get the slots
    on release.
    """
    limiter = ConcurrencyLimiter(3, max_queue_size=2)
    own = slots(limiter, max_concurrent_requests=1)
    limiter.retain("fake", 10)
    (waiting,) = await began(own.acquire(1))

    assert (own.free(), slots(limiter, "other").free()) == (0, 2)
    limiter.release("fake", 10)
    assert await waiting == 1


class Counted:
    """Metrics that record each call."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.waits: list[str] = []

    def unreleased_changed(self, model: str, count: int) -> None:
        """Does nothing: no Triton runs in these tests."""

    def queue_changed(self, model: str, waiting: int) -> None:
        self.lengths.append(waiting)

    def queued(self, model: str, seconds: float) -> None:
        self.waits.append(model)


async def test_metrics_count_every_wait():
    """A wait can end with a slot, a timeout or a shutdown. Requests that get a slot immediately,
    or that cannot queue, are not counted.
    """
    metrics = Counted()
    limiter = ConcurrencyLimiter(1, max_queue_size=1, metrics=metrics)
    own = slots(limiter)
    await own.acquire(1)
    assert metrics.lengths == []

    (late,) = await began(own.acquire(1, timeout_s=0.001))
    with pytest.raises(QueueFull):
        own.check()
    await asyncio.wait([late])
    (waiter,) = await began(own.acquire(1))
    own.release(1)
    await waiter
    (dismissed,) = await began(own.acquire(1))
    limiter.drain()
    await asyncio.wait([dismissed])

    assert isinstance(late.exception(), QueueTimeout)
    assert isinstance(dismissed.exception(), ServerDraining)
    assert metrics.waits == ["fake"] * 3
    assert metrics.lengths[-1] == 0
    assert max(metrics.lengths) == 1


class AnyLoad(RuleBasedStateMachine):
    """Under any sequence of arrivals, finishes and cancellations, no slot is lost and none
    idles.
    """

    models = ("one", "other")

    @initialize(streams=st.integers(1, 4), own=st.none() | st.integers(1, 3))
    def begin(self, streams: int, own: int | None) -> None:
        self.loop = asyncio.new_event_loop()
        self.limiter = ConcurrencyLimiter(streams, max_queue_size=3)
        self.limits = {
            "one": ConcurrencyLimits(max_concurrent_requests=own),
            "other": ConcurrencyLimits(),
        }
        self.waiting: list[tuple[ModelSlots, asyncio.Task[int]]] = []
        self.running: list[tuple[ModelSlots, int]] = []

    @rule(model=st.sampled_from(models), key=st.sampled_from("ab"), wanted=st.integers(1, 3))
    def come(self, model: str, key: str, wanted: int) -> None:
        own = self.limiter.slots(model, self.limits[model])
        task = self.loop.create_task(own.acquire(wanted, QueueKey(key)))
        self.waiting.append((own, task))
        self.settle()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        own, granted = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        own.release(granted)
        if data.draw(st.booleans()):
            self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        self.waiting[data.draw(st.integers(0, len(self.waiting) - 1))][1].cancel()
        if data.draw(st.booleans()):
            self.settle()

    def settle(self) -> None:
        self.loop.run_until_complete(_turns())
        still: list[tuple[ModelSlots, asyncio.Task[int]]] = []
        for own, task in self.waiting:
            if not task.done():
                still.append((own, task))
            elif not task.cancelled() and task.exception() is None:
                self.running.append((own, task.result()))
        self.waiting = still

    @invariant()
    def places_add_up(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.settle()
        taken = sum(granted for _, granted in self.running)
        assert self.limiter.running == taken <= self.limiter.max_concurrent_requests
        for model, limits in self.limits.items():
            own = self.limiter.slots(model, limits)
            tasks = [task for its, task in self.waiting if its is own]
            assert len(own.queue) == len(tasks) <= 3
            assert own.running == sum(granted for its, granted in self.running if its is own)
            assert not (own.free() and tasks)

    def teardown(self) -> None:
        self.settle()
        while self.running:
            own, granted = self.running.pop()
            own.release(granted)
            self.settle()
        assert self.waiting == []
        assert self.limiter.running == 0
        self.loop.close()


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


AnyLoad.TestCase.settings = settings(max_examples=scaled(40), stateful_step_count=30, deadline=None)
TestAnyLoad = AnyLoad.TestCase


async def test_free_slot_costs_at_most_5_us():
    """CPU time to check, enter and leave; the minimum of several measurements."""
    context, model = RequestContext("r"), FakeModel()
    entry = Admission(ConcurrencyLimiter(8, max_queue_size=8))

    async def asked() -> float:
        begun_s = time.process_time()
        for _ in range(2000):
            entry.check(context, model)
            async with entry.enter(context, model):  # type: ignore[arg-type]
                pass
        return (time.process_time() - begun_s) / 2000

    assert min([await asked() for _ in range(10)]) < budget(5e-6)
