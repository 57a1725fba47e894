import asyncio

import pytest

from openai_frontend.admission.limits import NO_LIMITS
from openai_frontend.errors import QueueFull
from openai_frontend.serving.admission.batch import run_batch
from openai_frontend.serving.admission.concurrency_limit import (
    MAX_PARALLEL,
    ConcurrencyLimiter,
    ModelSlots,
)


def slots(streams: int) -> ModelSlots:
    return ConcurrencyLimiter(streams).slots("m", NO_LIMITS)


class Counting:
    """Work that gives back its item, later items first."""

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
async def test_order(items):
    """Results stand where their items stood, whichever came first."""
    work = Counting()

    results = await run_batch(slots(1024), work, range(items))

    assert list(range(items)) == results


async def test_a_few_at_a_time():
    """However many there are, no more than AT_ONCE run together."""
    work = Counting()

    await run_batch(slots(1024), work, range(2048))

    assert work.most == MAX_PARALLEL


async def test_only_as_many_as_the_server_has_room_for():
    """A small `max_concurrent_requests` slows a large batch down; it does not refuse it."""
    work, own = Counting(), slots(3)

    results = await run_batch(own, work, range(100))

    assert (work.most, len(results), own.running) == (3, 100, 0)


async def test_no_room():
    """Where generations fill the server, a batch is refused before it begins."""
    work, own = Counting(), slots(3)
    await own.acquire(3)

    with pytest.raises(QueueFull):
        await run_batch(own, work, range(2))

    assert work.ended == 0


async def test_first_failure_ends_the_rest():
    """Nothing runs on, and nothing more begins, once one item has failed."""
    work, own = Counting(fails_at=4), slots(3)

    with pytest.raises(ValueError, match="4"):
        await run_batch(own, work, range(1000))

    assert (work.running, own.running) == (0, 0)
    assert work.ended < 20


async def test_caller_goes_away():
    """Cancelling the batch cancels all that runs for it."""
    begun, cancelled = asyncio.Event(), []

    async def work(item: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(item)

    task = asyncio.create_task(run_batch(slots(2), work, range(9)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert sorted(cancelled) == [0, 1]
