"""Keeps a task going that nobody waits for. Knows nothing of what it does."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

AGAIN_S = 1.0


async def keep_up(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Does `work`, which goes on for ever; where it fails all the same, logs it and begins again.

    What looks at keys, engines and files must outlast a moment without memory or threads: nobody
    would notice that it looks no more.
    """
    while True:
        try:
            await work()
            return
        except Exception:
            logger.exception("%s failed, and begins again", name)
        await asyncio.sleep(AGAIN_S)
