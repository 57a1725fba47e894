"""Loads, unloads and polls the core's models: blocking calls that cannot be cancelled."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from pathlib import PurePosixPath
from typing import Any

from openai_frontend import errors
from openai_frontend.triton import _core, inprocess
from openai_frontend.triton.change_lock import CoreChangeLock

UNLOAD_POLL_S = 0.02  # short against any unload
_INTERRUPT_EVERY_S = 0.2

# Takes a change of the core's models and the model's name; None if several may change
InThread = Callable[[Callable[[_core.Server], None], str | None], Coroutine[Any, Any, None]]


class ModelControl:
    """Changes the models of one core. Used on the event loop."""

    def __init__(
        self,
        in_thread: InThread,
        states: Callable[[str], Collection[str]],
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        """`in_thread` calls the core on a thread; `states` returns the states of a model's versions
        as of the last change or `refresh`.
        """
        self._in_thread = in_thread
        self._states = states
        self._refresh = refresh
        self._lock = CoreChangeLock()
        self._changes: set[asyncio.Future[None]] = set()

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model. Raises the reason if it does not load."""
        _check_name(name)
        native_files = dict(files)

        async def load() -> None:
            async with self._lock.loading(name, is_reload=lambda: "READY" in self._states(name)):
                await self._in_thread(
                    lambda core: core.load_model(name, config, native_files), name
                )

        await self.run_shielded(load())

    async def unload(self, name: str) -> None:
        """Unload a model once no load runs, and wait until it is gone or was loaded again."""
        leaving = inprocess.hosts(name)

        async def unload() -> None:
            async with self._lock.unloading():
                await self._in_thread(lambda core: core.unload_model(name), name)

        await self.run_shielded(unload())
        while self._is_unloading(name, leaving):  # the core has no event for it
            await asyncio.sleep(UNLOAD_POLL_S)
            await self._refresh()

    def _is_unloading(self, name: str, leaving: Collection[inprocess.EngineHandle]) -> bool:
        """The core's unload returns early: the model goes later, and its engine last."""
        return "UNLOADING" in self._states(name) or not inprocess.hosts(name).isdisjoint(leaving)

    async def poll(self) -> None:
        """Let the core load and unload models whose files changed."""

        async def poll() -> None:
            try:
                await self._in_thread(lambda core: core.poll_model_repository(), None)
            finally:
                self.note_load()

        await self.run_shielded(poll())

    def is_changing(self) -> bool:
        """Whether a change is running."""
        return bool(self._changes)

    def note_load(self) -> None:
        """Record that models were loaded just now."""
        self._lock.note_load()

    async def run_shielded(self, change: Coroutine[Any, Any, None]) -> None:
        """Await a change. If the caller is cancelled, it continues: the core cannot abort it.

        Stopping the server interrupts it.
        """
        changing = asyncio.ensure_future(change)
        self._changes.add(changing)
        changing.add_done_callback(self._changed)
        await asyncio.shield(changing)

    def _changed(self, change: asyncio.Future[None]) -> None:
        """Mark the exception as retrieved: the caller may have been cancelled."""
        self._changes.discard(change)
        if not change.cancelled():
            change.exception()

    async def end(self) -> None:
        """Interrupt running changes; return when it is safe to stop the core."""
        while self._changes:
            inprocess.interrupt_loads()
            await asyncio.wait(self._changes, timeout=_INTERRUPT_EVERY_S)
        await asyncio.sleep(self.settle_delay_s())

    def settle_delay_s(self) -> float:
        """Seconds until it is safe to stop the core, if no change is running."""
        return self._lock.settle_delay_s()


def _check_name(name: str) -> None:
    """Reject path traversal: the core loads whatever repository path + name points to."""
    path = PurePosixPath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
        raise errors.InvalidRequest(f"{name!r} is not a valid model name", param="model")
