"""Loads, unloads and polls the core's models: blocking calls that cannot be cancelled.

Locks allow one change per model at a time, and keep the core from its races.
"""

import asyncio
import json
import logging
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any
from weakref import WeakValueDictionary

from openai_frontend import errors
from openai_frontend.errors import Conflict
from openai_frontend.triton import _core, inprocess
from openai_frontend.triton.ensembles import with_ensembles
from openai_frontend.triton.stub_processes import serves
from openai_frontend.triton.unload_watch import UnloadWatch

logger = logging.getLogger(__name__)

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

    def is_loading(self, name: str) -> bool:
        """Whether the model is being loaded, reloaded or restarted."""
        return name in self._done and name not in self._unloading

    def is_unloading(self, name: str) -> bool:
        """Whether the model is being unloaded: no new request may start."""
        return name in self._unloading

    def any_unloading(self) -> bool:
        """Whether any model is being unloaded."""
        return bool(self._unloading)

    def __contains__(self, name: str) -> bool:
        return name in self._done

    async def wait_until_free(self, name: str) -> None:
        """Wait until the model's lock is free."""
        while (done := self._done.get(name)) is not None:
            await done.wait()


UNLOAD_POLL_S = 0.02  # short against any unload
_STOP_POLL_S = 0.005  # on a thread, so that it need not spare the event loop
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
        watch: Callable[[str], Awaitable[UnloadWatch]],
    ) -> None:
        """`in_thread` calls the core on a thread; `states` returns the states of a model's versions
        as of the last change or `refresh`; `watch` watches the unload of a model.
        """
        self._in_thread = in_thread
        self._states = states
        self._refresh = refresh
        self._watch = watch
        # Models whose unload Triton does not complete. It loads them again like others.
        self.given_up: set[str] = set()
        # The core keeps the record of a reload that failed, and its stop waits for it in vain
        self.has_failed_reload = False
        self._unloads: dict[str, UnloadWatch] = {}  # under way
        self._lock = CoreChangeLock()
        self._changes: set[asyncio.Future[None]] = set()

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model. Raises the reason if it does not load."""
        _check_name(name)
        native_files = dict(files)

        async def load() -> None:
            def is_reload() -> bool:
                return "READY" in self._states(name)

            async with self._lock.loading(name, is_reload=is_reload):
                reloads = is_reload()
                try:
                    await self._in_thread(
                        lambda core: core.load_model(name, config, native_files), name
                    )
                except errors.GatewayError:
                    self.has_failed_reload |= reloads
                    raise
                self.given_up.discard(name)

        await self.run_shielded(load())

    async def unload(self, name: str) -> None:
        """Unload a model once no load runs, and wait until it is gone or was loaded again, or until
        it is given up, because its process has died or hangs.
        """
        leaving = inprocess.handles(name)
        watch = self._unloads[name] = await self._watch(name)

        async def unload() -> None:
            async with self._lock.unloading():
                await self._in_thread(lambda core: core.unload_model(name), name)

        try:
            await self.run_shielded(unload())
            while self._is_unloading(name, leaving):  # the core has no event for it
                if watch.gives_up(time.monotonic()):
                    logger.warning("model %s: unloaded; Triton keeps what is left of it", name)
                    self.given_up.add(name)
                await asyncio.sleep(UNLOAD_POLL_S)
                await self._refresh()
        finally:
            self._unloads.pop(name, None)

    def lost_models(self) -> set[str]:
        """The models whose unload Triton does not complete, as far as that is known."""
        return self.given_up | {name for name, watch in self._unloads.items() if watch.has_died}

    def _is_unloading(self, name: str, leaving: Collection[inprocess.EngineHandle]) -> bool:
        """The core's unload returns early: the model goes later, and its engine last."""
        return "UNLOADING" in self._states(name) or not inprocess.handles(name).isdisjoint(leaving)

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


def unload_all(core: _core.Server, *, lost: Collection[str] = (), within_s: float = 1.0) -> None:
    """Unload every model, and wait until all are gone, except `lost` ones. Blocks.

    For a stop that follows: the core's own checks only once a second whether models are left. What
    cannot be unloaded, the stop waits for and reports.
    """
    with suppress(_core.TritonError):
        loaded = json.loads(core.model_statistics("", -1))["model_stats"]
        for name in _ensembles_first(core, {model["name"] for model in loaded}):
            core.unload_model(name)
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and _is_any_left(core, lost):
            time.sleep(_STOP_POLL_S)


def _ensembles_first(core: _core.Server, names: Collection[str]) -> list[str]:
    """The core logs an error for an ensemble whose composing model is unloaded before it."""
    configs = {}
    for name in names:
        with suppress(_core.TritonError):  # it has just become unready
            configs[name] = json.loads(core.model_config(name, -1))
    return sorted(names, key=lambda name: len(with_ensembles(configs, {name})))


def lost_models(core: _core.Server, instances: Collection[str]) -> set[str]:
    """The loaded models that use one of these instances."""
    loaded = {entry["name"] for entry in json.loads(core.model_index(True))}
    configs = {name: json.loads(core.model_config(name, -1)) for name in loaded}
    owners = {
        name
        for name, config in configs.items()
        if any(serves(each, config.get("instance_group", ())) for each in instances)
    }
    return with_ensembles(configs, owners)


def _is_any_left(core: _core.Server, lost: Collection[str]) -> bool:
    """The index lacks models whose files came with the load."""
    entries = json.loads(core.model_index(False))
    unloading = {entry["name"] for entry in entries if entry.get("state") == "UNLOADING"}
    return bool(unloading.difference(lost)) or inprocess.any_handles()


def _check_name(name: str) -> None:
    """Reject path traversal: the core loads whatever repository path + name points to."""
    path = PurePosixPath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
        raise errors.InvalidRequest(f"{name!r} is not a valid model name", param="model")
