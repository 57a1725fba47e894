"""Background tasks: restarted if they fail, and awake at the same times."""

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


async def next_tick(every_s: float) -> None:
    """Sleep until the event loop's clock reaches a multiple of `every_s` that is at least half of
    `every_s` away.

    Periodic checks then share their wake-ups, on which an idle process spends most of its CPU time.
    """
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    due_s = (now_s // every_s + 1) * every_s
    if due_s - now_s < every_s / 2:  # timers may be a millisecond early
        due_s += every_s
    await asyncio.sleep(due_s - now_s)
