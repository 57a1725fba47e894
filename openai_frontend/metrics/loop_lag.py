"""Measures how late the event loop is: what one callback takes, all streams wait for."""

import asyncio
from collections.abc import Callable

_EVERY_S = 0.25


async def watch(tell: Callable[[float], None]) -> None:
    """For ever: `tell` gets the seconds by which a timer came late."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        tell(max(0.0, loop.time() - due_s))
