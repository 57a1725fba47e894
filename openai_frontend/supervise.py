"""Restarts background tasks that fail."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

RESTART_DELAY_S = 1.0


async def supervise(name: str, task: Callable[[], Awaitable[None]]) -> None:
    """Run `task`, which never returns by itself; log a failure and restart it.

    A shortage of memory or threads must not end the tasks that watch keys, files and engines:
    their absence would go unnoticed.
    """
    while True:
        try:
            await task()
            return
        except Exception:
            logger.exception(
                "background task '%s' failed; restarting in %g s", name, RESTART_DELAY_S
            )
        await asyncio.sleep(RESTART_DELAY_S)
