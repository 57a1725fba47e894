"""Locks for changes of models: one change per model at a time, and no races in Triton's core."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from openai_frontend.errors import Conflict

SETTLE_S = 0.03  # long compared with the scheduling delay of a runnable thread


class CoreChangeLock:
    """Loads run in parallel, unloads alone, and no change removes a model that was just loaded.

    There are two races in Triton's core (2.51, and its main branch of 2026):

    - It reports a model instance as ready before the instance's thread has put it back into its
      list. Unloading or reloading the model in between takes the last element of an empty list
      (`StopBackendThread` in src/backend_model_instance.cc). Six threads that each load and unload
      a model crash the process within a second; with a pause after each load they did not in 4,700
      rounds.
    - It creates an ensemble without checking that its composing models still exist (`CreateModel`
      in src/model_repository_manager/model_lifecycle.cc); a concurrent unload may have removed
      them.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changed = asyncio.Condition()
        self._loads = 0  # running
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
        """Held during an unload: loads that start now wait for it."""
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
        """Record that a model was loaded just now."""
        self._loaded_at = time.monotonic()

    def settle_delay_s(self) -> float:
        """Seconds until all loaded models have settled."""
        return max(0.0, self._loaded_at + SETTLE_S - time.monotonic())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class ModelLocks:
    """A lock per model. Taking a lock that is held fails instead of waiting."""

    def __init__(self) -> None:
        self._done: dict[str, asyncio.Event] = {}
        self._unloading: set[str] = set()

    def check(self, name: str) -> None:
        """Raise Conflict if the model is being loaded or unloaded."""
        if name in self._done:
            message = f"The model '{name}' is being loaded or unloaded."
            raise Conflict(message, param="model")

    @contextmanager
    def hold(self, name: str, *, unloading: bool = False) -> Iterator[None]:
        """Hold the model's lock during a change. Raises as `check`."""
        self.check(name)
        done = self._done[name] = asyncio.Event()
        if unloading:
            self._unloading.add(name)
        try:
            yield
        finally:
            del self._done[name]
            self._unloading.discard(name)
            done.set()

    def is_unloading(self, name: str) -> bool:
        """Whether the model is being unloaded: no new request may start."""
        return name in self._unloading

    def __contains__(self, name: str) -> bool:
        return name in self._done

    async def wait_until_free(self, name: str) -> None:
        """Wait until the model's lock is free."""
        while (done := self._done.get(name)) is not None:
            await done.wait()
