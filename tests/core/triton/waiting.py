"""Waits for another thread or process that sends no event."""

import asyncio
from collections.abc import Callable


async def until(true: Callable[[], bool], timeout_s: float = 30) -> None:
    """Returns once `true()`; raises TimeoutError otherwise."""
    async with asyncio.timeout(timeout_s):
        while not true():  # noqa: ASYNC110 - the core has no event for it
            await asyncio.sleep(0.005)
