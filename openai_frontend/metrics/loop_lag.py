"""Measures the lag of the event loop: every stream waits for the longest callback."""

import asyncio
from collections.abc import Callable

_EVERY_S = 0.25


async def watch(observe: Callable[[float], None]) -> None:
    """Runs until cancelled; calls `observe` with the delay of a timer in seconds."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        observe(max(0.0, loop.time() - due_s))
