"""Keeps the changes of a core's models apart where the core would crash on them together.

Both are races inside of Triton's core (2.51, and its main branch of 2026):

- It says that a model instance is ready before the instance's thread has put it back into its list;
  a model that is unloaded, or loaded anew, in between takes the last element of an empty list
  (`StopBackendThread` in src/backend_model_instance.cc). Six threads that load and unload a model
  each crash the process within a second; with a pause after each load they have not in 4,700
  rounds.
- It makes an ensemble without a look whether its parts are still there (`CreateModel` in
  src/model_repository_manager/model_lifecycle.cc), which another unload may just have taken.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

SETTLE_S = 0.03  # long against the time that a thread which may run is not given a core


class CoreChangeLock:
    """Loads may run together, an unload runs alone, and nothing takes away what has just come."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changed = asyncio.Condition()
        self._loads = 0  # under way
        self._unloads = False
        self._loaded_at = float("-inf")  # on the monotonic clock

    @asynccontextmanager
    async def loading(
        self, name: str, *, is_reload: Callable[[], bool]
    ) -> AsyncGenerator[None, None]:
        """Held during a load. `is_reload` says whether the load replaces a loaded model; it is
        called once the model's lock is held, because an earlier load may have been the first.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            async with self._changed:
                await self._changed.wait_for(lambda: not self._unloads)
                self._loads += 1
            try:
                if is_reload():
                    await asyncio.sleep(self.settle_delay_s())
                yield
            finally:
                self._loads -= 1
                self.note_load()
                await self._notify()

    @asynccontextmanager
    async def unloading(self) -> AsyncGenerator[None, None]:
        """Around an unload: what begins to load now comes after it."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._unloads)
            self._unloads = True
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._loads)
            await asyncio.sleep(self.settle_delay_s())
            yield
        finally:
            self._unloads = False
            await self._notify()

    def note_load(self) -> None:
        """Note that some model has been loaded just now."""
        self._loaded_at = time.monotonic()

    def settle_delay_s(self) -> float:
        """Seconds until nothing that has been loaded is new."""
        return max(0.0, self._loaded_at + SETTLE_S - time.monotonic())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
