"""Orders requests that need several models at once, such as a chat with its guard.

Such a request keeps one model loaded while it waits for the other. Two of them that load different
models could each keep what the other needs to unload, until both time out.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from openai_frontend.admission.queue import QueueKey, WaitQueue


class LoadGroups:
    """Lets sets of models load at the same time only if all of them fit beside each other."""

    def __init__(self, fit: Callable[[frozenset[str]], bool]) -> None:
        self._fit = fit
        self._loading: Counter[frozenset[str]] = Counter()  # the requests that wait for each set
        self._queue = WaitQueue(
            "",
            describe_load=lambda: "Chats with other guards load their models",
            give_back=lambda _: None,
            queued_for="a guard and a model",
        )

    @asynccontextmanager
    async def hold(
        self, names: frozenset[str], queue_key: QueueKey, *, max_size: int, timeout_s: float
    ) -> AsyncIterator[None]:
        """Wait for the loads of sets that do not fit beside this one. Requests for the same set do
        not wait for each other.

        Raises QueueFull, QueueTimeout or ServerDraining.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        while not self._may_load(names):
            left_s = max(0.0, deadline - clock())
            await self._queue.wait(1, queue_key, max_size=max_size, timeout_s=left_s)
        self._loading[names] += 1
        try:
            yield
        finally:
            self._loading[names] -= 1
            if not self._loading[names]:
                del self._loading[names]
                while self._queue:  # all look again, in their order
                    self._queue.serve(lambda wanted: wanted)

    def _may_load(self, names: frozenset[str]) -> bool:
        if not self._loading or names in self._loading:
            return True
        # Else those that wait could wait for as long as smaller sets come
        return not self._queue and self._fit(names.union(*self._loading))

    def drain(self) -> None:
        """Reject the requests that wait."""
        self._queue.reject_all()
