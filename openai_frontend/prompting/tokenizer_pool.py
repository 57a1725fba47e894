"""The bounded threads in which prompts are built, off the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from openai_frontend.errors import ServerOverloaded

Result = TypeVar("Result")


# A prompt of up to so many characters is built on the event loop: it takes 0.1 to 0.5 ms there, and
# the way into a thread and back costs 0.1 ms of CPU more (docs/decisions/0008).
INLINE_CHARACTERS = 2048


class TokenizerPool:
    """At most `threads` prompts at work and `queue` waiting; one more is refused."""

    def __init__(self, *, threads: int, queue: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="prompt")
        self._capacity = threads + queue
        self._pending = 0

    async def run(self, work: Callable[[], Result], *, characters: int | None = None) -> Result:
        """The result of `work`; a caller that goes away takes waiting work with it.

        `characters` is the prompt's length where it is known to be all that the work takes.
        """
        if characters is not None and characters <= INLINE_CHARACTERS:
            return work()
        if self._pending >= self._capacity:
            raise ServerOverloaded("Too many prompts are waiting to be tokenized.")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._pending -= 1

    def close(self) -> None:
        """Drops what waits; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
