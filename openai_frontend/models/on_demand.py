"""Loads models on demand and unloads the least recently used ones to make room."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from openai_frontend.errors import GatewayError, ModelFailed, ModelUnavailable
from openai_frontend.models.registry import ModelRegistry

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandLimits:
    """How much may be loaded at the same time; None means no limit."""

    models: int | None = None
    memory_bytes: int | None = None
    wait_s: float = 300.0  # how long a request waits for its model
    retry_s: float = 10.0  # backoff after a failed load


class OnDemandLoader:
    """Loads one model at a time, so that the growth of memory can be attributed to it.

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
        self._failures: dict[str, tuple[float, str]] = {}  # when, and why
        self._measured_bytes: dict[str, int] = {}
        self._idle_event = asyncio.Event()

    async def ensure_loaded(self, model_name: str) -> None:
        """Return once the model is loaded. Concurrent requests share one load. A model that does
        not load on demand is left as it is.

        Raises ModelUnavailable if the load fails or times out, or if there is no room.
        """
        registry = self._registry
        if registry.is_loaded(model_name) or not registry.loads_on_demand(model_name):
            return
        lease = self._registry.lease(model_name)
        lease.pin()  # from the end of the load until the caller continues, without an await between
        try:
            async with asyncio.timeout(self._limits.wait_s):
                while not self._registry.is_loaded(model_name):
                    await asyncio.shield(self._load_task(model_name))
        except TimeoutError:
            message = f"The model '{model_name}' is still loading. Retry later."
            raise ModelUnavailable(message) from None
        finally:
            lease.unpin()

    def notify_idle(self) -> None:
        """Wake the load that waits for an idle model."""
        self._idle_event.set()

    async def close(self) -> None:
        """Cancel all loads."""
        for task in self._loads.values():
            task.cancel()
        if self._loads:
            await asyncio.wait(list(self._loads.values()))

    def _load_task(self, name: str) -> asyncio.Task[None]:
        """The current load, or a new one unless the last one has just failed."""
        when, why = self._failures.get(name, (0.0, ""))
        if why and time.monotonic() - when < self._limits.retry_s:
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
        async with self._load_lock:
            await self._registry.locks.wait_until_free(name)
            if self._registry.is_loaded(name):
                return
            await self._evict_until_fits(self._size_bytes(name), name=name)
            before = await asyncio.to_thread(self._used_bytes)
            try:
                await self._registry.load(name)
            except GatewayError as error:
                reason = " ".join(error.message.split()).removesuffix(";")
                self._failures[name] = (time.monotonic(), reason)
                raise ModelFailed(name, reason) from error
            self._failures.pop(name, None)
            added = await asyncio.to_thread(self._used_bytes) - before
            self._measured_bytes[name] = max(added, self._measured_bytes.get(name, 0))
            logger.info("model %s: loaded on demand, %d bytes", name, self._size_bytes(name))
            await self._evict_until_fits(
                0, name=name, wait=False
            )  # the load has only now shown its size

    def _size_bytes(self, name: str) -> int:
        """The model's size; 0 if it has no option and was never loaded on demand."""
        declared = self._registry.options(name).memory_bytes
        return self._measured_bytes.get(name, 0) if declared is None else declared

    async def _evict_until_fits(self, wanted: int, *, name: str, wait: bool = True) -> None:
        """Unload idle models until `wanted` bytes fit; wait for models to become idle."""
        limit = self._limits.memory_bytes
        if limit is not None and wanted > limit:
            message = f"The model '{name}' needs {wanted} bytes; all models may use {limit}."
            raise ModelUnavailable(message)
        deadline = asyncio.get_running_loop().time() + self._limits.wait_s
        while self._is_full(wanted, name):
            self._idle_event.clear()
            victim = self._least_recently_used(but=name)
            if victim is not None:
                logger.info("model %s: unloading to make room for %s", victim, name)
                await self._registry.unload(victim)
            elif not wait:
                return  # the next load will evict
            else:
                await self._wait_for_idle(deadline, name)

    async def _wait_for_idle(self, deadline: float, name: str) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._idle_event.wait()
        except TimeoutError:
            message = f"No room for the model '{name}': all loaded models are in use. Retry later."
            raise ModelUnavailable(message) from None

    def _is_full(self, wanted: int, name: str) -> bool:
        loaded = self._registry.loaded()
        others = [each for each in loaded if each != name and self._registry.loads_on_demand(each)]
        if self._limits.models is not None and len(others) >= self._limits.models:
            return True
        if self._limits.memory_bytes is None:
            return False
        taken = sum(self._size_bytes(each) for each in loaded)
        return taken + wanted > self._limits.memory_bytes

    def _least_recently_used(self, *, but: str) -> str | None:
        idle = [
            name
            for name in self._registry.loaded()
            if name != but
            and self._registry.loads_on_demand(name)
            and self._registry.lease(name).is_idle
            and name not in self._registry.locks
        ]
        return min(idle, key=lambda name: self._registry.lease(name).last_used, default=None)


def process_memory_bytes() -> int:
    """Resident memory of this process and its descendants."""
    this = psutil.Process()
    return sum(_rss_bytes(process) for process in [this, *this.children(recursive=True)])


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:  # it has ended
        return 0
