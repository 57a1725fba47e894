"""Loads models on demand and unloads the least recently used ones to make room."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from openai_frontend.errors import GatewayError, ModelFailed, ModelUnavailable
from openai_frontend.models.registry import ModelRegistry

logger = logging.getLogger(__name__)

RETRY_S = 10.0  # until a failed load is tried again
_LOOK_AGAIN_S = 1.0  # an operator's unload makes room too, without an event


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandLimits:
    """How much may be loaded at the same time; None means no limit."""

    models: int | None = None
    memory_bytes: int | None = None
    wait_s: float = 300.0  # how long a request waits for its model


class OnDemandLoader:
    """Loads one model at a time, so that the growth of memory can be attributed to it.

    A load that waits for room does not keep others from loading, and neither does an unload.
    A model's size is its `memory_bytes` option, or else the largest growth measured at its loads.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        limits: OnDemandLimits,
        *,
        used_bytes: Callable[[], int]
        | None = None,  # of all models; by default the memory of this process and its children
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._used_bytes = used_bytes or process_memory_bytes
        self._load_lock = asyncio.Lock()
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._evictions: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[float, str]] = {}  # when, and why
        self._measured_bytes: dict[str, int] = {}
        self._room_event = asyncio.Event()

    async def ensure_loaded(self, model_name: str) -> None:
        """Return once the model is loaded. Concurrent requests share one load. A model that does
        not load on demand is left as it is.

        Raises ModelUnavailable if the load fails or times out, or if there is no room.
        """
        registry = self._registry
        if registry.is_loaded(model_name) or not registry.loads_on_demand(model_name):
            return
        use = self._registry.use(model_name)
        use.pin()  # from the end of the load until the caller continues, without an await between
        try:
            async with asyncio.timeout(self._limits.wait_s):
                while not self._registry.is_loaded(model_name):
                    await asyncio.shield(self._load_task(model_name))
        except TimeoutError:
            message = f"The model '{model_name}' is still loading. Retry later."
            raise ModelUnavailable(message) from None
        finally:
            use.unpin()

    def notify_idle(self) -> None:
        """Wake the loads that wait for an idle model."""
        self._room_event.set()

    async def close(self) -> None:
        """Cancel all loads and evictions."""
        tasks = [*self._loads.values(), *self._evictions.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _load_task(self, name: str) -> asyncio.Task[None]:
        """The current load, or a new one unless the last one has just failed."""
        when, why = self._failures.get(name, (0.0, ""))
        if why and time.monotonic() - when < RETRY_S:
            raise ModelFailed(name, why)
        task = self._loads.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(name))
            self._loads[name] = task
            task.add_done_callback(lambda done: self._forget(name, done))
        return task

    def _forget(self, name: str, task: asyncio.Task[None]) -> None:
        del self._loads[name]
        if not task.cancelled():
            task.exception()  # mark as retrieved: every waiter may have left

    async def _load(self, name: str) -> None:
        deadline = asyncio.get_running_loop().time() + self._limits.wait_s
        while not await self._load_if_it_fits(name):
            await self._wait_for_room(deadline, name)

    async def _load_if_it_fits(self, name: str) -> bool:
        """Whether the model is loaded now. If not, idle models are being unloaded to make room."""
        await self._registry.locks.wait_until_free(name)
        async with self._load_lock:
            if self._registry.is_loaded(name):
                return True
            self._room_event.clear()
            if name in self._registry.locks or not self._make_room(self._size_bytes(name), name):
                return False
            await self._load_and_measure(name)
        self._make_room(0, name)  # the load has only now shown its size
        return True

    async def _load_and_measure(self, name: str) -> None:
        before = await asyncio.to_thread(self._used_bytes)
        measurable = not self._evictions  # their memory would hide that of the load
        try:
            await self._registry.load(name)
        except GatewayError as error:
            reason = " ".join(error.message.split()).removesuffix(";")
            self._failures[name] = (time.monotonic(), reason)
            raise ModelFailed(name, reason) from error
        self._failures.pop(name, None)
        added = await asyncio.to_thread(self._used_bytes) - before
        if measurable or name not in self._measured_bytes:
            self._measured_bytes[name] = max(added, self._measured_bytes.get(name, 0))
        logger.info("model %s: loaded on demand, %d bytes", name, self._size_bytes(name))

    def _size_bytes(self, name: str) -> int:
        """The model's size; 0 if it has no option and was never loaded on demand."""
        declared = self._registry.options(name).memory_bytes
        return self._measured_bytes.get(name, 0) if declared is None else declared

    def _make_room(self, wanted: int, name: str) -> bool:
        """Whether `wanted` bytes fit. If not, start to unload as many idle models as necessary."""
        limit = self._limits.memory_bytes
        if limit is not None and wanted > limit:
            message = f"The model '{name}' needs {wanted} bytes; all models may use {limit}."
            raise ModelUnavailable(message)
        loaded = self._registry.loaded()
        if not self._is_full(loaded, wanted, name):
            return True
        while self._is_full(loaded - self._evictions.keys(), wanted, name):
            victim = self._least_recently_used(but=name)
            if victim is None:
                break
            logger.info("model %s: unloading to make room for %s", victim, name)
            self._evictions[victim] = asyncio.create_task(self._evict(victim))
        return False

    async def _evict(self, victim: str) -> None:
        try:
            await self._registry.unload(victim)
        except GatewayError as error:  # an operator changes it, or the server stops
            logger.warning("model %s: could not be unloaded: %s", victim, error.message)
        finally:
            del self._evictions[victim]
            self._room_event.set()

    async def _wait_for_room(self, deadline: float, name: str) -> None:
        remaining_s = deadline - asyncio.get_running_loop().time()
        if remaining_s <= 0:
            message = f"No room for the model '{name}': all loaded models are in use. Retry later."
            raise ModelUnavailable(message)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(remaining_s, _LOOK_AGAIN_S)):
                await self._room_event.wait()

    def _is_full(self, loaded: frozenset[str], needed_bytes: int, name: str) -> bool:
        others = [each for each in loaded if each != name and self._registry.loads_on_demand(each)]
        if self._limits.models is not None and len(others) >= self._limits.models:
            return True
        if self._limits.memory_bytes is None:
            return False
        used_bytes = sum(self._size_bytes(each) for each in loaded)
        return used_bytes + needed_bytes > self._limits.memory_bytes

    def _least_recently_used(self, *, but: str) -> str | None:
        idle = [
            name
            for name in self._registry.loaded()
            if name != but
            and self._registry.loads_on_demand(name)
            and self._registry.use(name).is_idle
            and name not in self._registry.locks
            and name not in self._evictions
        ]
        return min(idle, key=lambda name: self._registry.use(name).last_used, default=None)


def process_memory_bytes() -> int:
    """Resident memory of this process and its descendants."""
    this = psutil.Process()
    return sum(_rss_bytes(process) for process in [this, *this.children(recursive=True)])


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:  # it has ended
        return 0
