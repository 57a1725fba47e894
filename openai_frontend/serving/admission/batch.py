"""The many short requests of one call: a few at a time, their results in order. Never a stream."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from openai_frontend.admission.limits import ANONYMOUS, QueueKey
from openai_frontend.serving.admission.concurrency_limit import ModelSlots

Item = TypeVar("Item")
Result = TypeVar("Result")


async def run_batch(
    slots: ModelSlots,
    work: Callable[[Item], Awaitable[Result]],
    items: Sequence[Item],
    turn: QueueKey = ANONYMOUS,
) -> list[Result]:
    """`work` done for every item; the first failure ends the rest."""
    at_once = await slots.acquire(len(items), turn)
    try:
        if len(items) == 1:  # no task
            return [await work(items[0])]
        results: dict[int, Result] = {}
        queue = iter(enumerate(items))

        async def take_turns() -> None:
            for index, item in queue:
                results[index] = await work(item)

        await _all_or_none([asyncio.ensure_future(take_turns()) for _ in range(at_once)])
    finally:
        slots.release(at_once)
    return [results[index] for index in range(len(items))]


async def _all_or_none(tasks: "Sequence[asyncio.Task[None]]") -> None:
    """Waits for all; where one fails or the caller goes, no other outlives it."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
