"""Orders requests that need several models at once, such as a chat with its guard.

Such a request keeps one model loaded while it waits for the other. Two of them that load different
models could each keep what the other needs to unload, until both time out.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from openai_frontend.admission.queue import QueueKey, WaitQueue


class LoadGroups:
    """Lets one set of models load at a time."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()  # the set that loads
        self._requests = 0  # that wait for its loads
        self._queue = WaitQueue(
            "",
            describe_load=lambda: "Chats with other guards load their models",
            give_back=lambda _: None,
        )

    @asynccontextmanager
    async def hold(
        self, names: frozenset[str], queue_key: QueueKey, *, max_size: int, timeout_s: float
    ) -> AsyncIterator[None]:
        """Wait until no other set loads. Requests for the same set do not wait for each other.

        Raises QueueFull, QueueTimeout or ServerDraining.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        while self._requests and names != self._names:
            left_s = max(0.0, deadline - clock())
            await self._queue.wait(1, queue_key, max_size=max_size, timeout_s=left_s)
        self._names = names
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            while not self._requests and self._queue:  # all look again, in their order
                self._queue.serve(lambda wanted: wanted)

    def drain(self) -> None:
        """Reject the requests that wait."""
        self._queue.reject_all()
