import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from openai_frontend.admission.queue import NO_LIMITS
from openai_frontend.errors import QueueFull
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.admission.concurrency_limit import (
    MAX_PARALLEL,
    ConcurrencyLimiter,
    gather_bounded,
)
from openai_frontend.serving.admission.permit import Admission
from tests.fast.serving.fake_model import FakeModel


async def gather(limiter: ConcurrencyLimiter, work: Any, items: Sequence[int]) -> list[Any]:
    """Results of one request, within the slots that it gets."""
    model: Any = FakeModel()
    async with Admission(limiter).enter(RequestContext("r"), model, wanted=len(items)) as permit:
        return await gather_bounded(work, items, permit.granted)


class Counting:
    """Work that counts its runs and returns its item. Later items finish first."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.running = self.most = self.ended = 0
        self._fails_at = fails_at

    async def __call__(self, item: int) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(5 - item % 5):
                await asyncio.sleep(0)
            if item == self._fails_at:
                raise ValueError(item)
            return item
        finally:
            self.running -= 1
            self.ended += 1


@pytest.mark.parametrize("items", [1, 2, MAX_PARALLEL, 2048])
async def test_results_keep_the_order_of_their_items(items):
    """The order of completion does not matter."""
    work = Counting()

    results = await gather(ConcurrencyLimiter(1024), work, range(items))

    assert list(range(items)) == results


async def test_runs_at_most_max_parallel_items():
    work = Counting()

    await gather(ConcurrencyLimiter(1024), work, range(2048))

    assert work.most == MAX_PARALLEL


async def test_runs_at_most_the_free_slots():
    """A small `max_concurrent_requests` slows a large batch but does not reject it."""
    work, own = Counting(), ConcurrencyLimiter(3)

    results = await gather(own, work, range(100))

    assert (work.most, len(results), own.running) == (3, 100, 0)


async def test_full_server_rejects_the_batch():
    """The batch does not start."""
    work, own = Counting(), ConcurrencyLimiter(3)
    await own.slots("m", NO_LIMITS).acquire(3)

    with pytest.raises(QueueFull):
        await gather(own, work, range(2))

    assert work.ended == 0


async def test_first_failure_cancels_the_rest():
    """No item keeps running and no further item starts."""
    work, own = Counting(fails_at=4), ConcurrencyLimiter(3)

    with pytest.raises(ValueError, match="4"):
        await gather(own, work, range(1000))

    assert (work.running, own.running) == (0, 0)
    assert work.ended < 20


async def test_cancelling_the_caller_cancels_the_work():
    begun, cancelled = asyncio.Event(), []

    async def work(item: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(item)

    task = asyncio.create_task(gather(ConcurrencyLimiter(2), work, range(9)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert sorted(cancelled) == [0, 1]
