"""The bounded threads in which prompts are built. Never runs anything on the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from openai_frontend.errors import ServerOverloaded

Result = TypeVar("Result")


class PromptPool:
    """At most `threads` prompts at work and `queue` waiting; one more is refused."""

    def __init__(self, *, threads: int, queue: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="prompt")
        self._capacity = threads + queue
        self._pending = 0

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`; a caller that goes away takes waiting work with it."""
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
