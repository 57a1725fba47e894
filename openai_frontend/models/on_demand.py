"""Loads models on demand, and unloads the least recently used ones to make room and idle ones."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from openai_frontend.admission.queue import (
    ANONYMOUS,
    NO_LIMITS,
    ConcurrencyLimits,
    QueueKey,
    QueueMetrics,
    WaitQueue,
)
from openai_frontend.config.model_options import ModelOptions
from openai_frontend.errors import GatewayError, ModelFailed, ModelUnavailable
from openai_frontend.models.load_capacity import LoadCapacity
from openai_frontend.models.load_groups import LoadGroups
from openai_frontend.models.model_use import ModelUse
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.sleep import ModelSleep

logger = logging.getLogger(__name__)

RETRY_S = 10.0  # until a failed load is tried again
_LOOK_AGAIN_S = 1.0  # an operator's unload makes room too, without an event


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandLimits:
    """How much may be loaded at the same time; None means no limit."""

    models: int | None = None
    memory_bytes: int | None = None
    wait_s: float = 300.0  # how long a load waits for room
    # Requests that wait for a load, for models without limits of their own
    requests: ConcurrencyLimits = NO_LIMITS


class OnDemandLoader:
    """Loads a model whose size must be measured alone, so that the growth of memory can be
    attributed to it; others side by side: without a memory budget, or with the option
    `memory_bytes`.

    A load that waits for room does not keep others from loading, and neither does an unload.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        limits: OnDemandLimits,
        *,
        used_bytes: Callable[[], int]
        | None = None,  # of all models; by default the memory of this process and its children
        metrics: QueueMetrics | None = None,
        sleep: ModelSleep | None = None,  # None: no model sleeps
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._used_bytes = used_bytes or process_memory_bytes
        self._metrics = metrics
        self._sleep = sleep
        self._capacity = LoadCapacity(
            registry, max_models=limits.models, max_bytes=limits.memory_bytes, sleep=sleep
        )
        # Models that fall asleep or wake; the result is why they did not wake
        self._changing: dict[str, asyncio.Task[GatewayError | None]] = {}
        self._falling_asleep: set[str] = set()
        self._called: set[str] = set()  # of those, the ones that a request waits for
        self._not_slept: dict[str, float] = {}  # when a model did not fall asleep
        self._load_lock = asyncio.Lock()
        self._groups = LoadGroups(self._capacity.surely_fit_together)
        self._side_by_side: set[str] = set()  # models that load without being measured
        self._to_measure: set[str] = set()  # models that fit, and wait until nothing else loads
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._queues: dict[str, WaitQueue] = {}  # of requests that wait for a load
        self._load_s: dict[str, float] = {}  # duration of the last load
        self._evictions: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[float, str]] = {}  # when, and why
        self._room_event = asyncio.Event()
        # Loads and wakes without room, by their first attempt, and whether what has begun to unload
        # makes room for them. If not, the others are in use, and later loads may go before them.
        self._waiting: dict[str, bool] = {}
        self._idle_options: Sequence[tuple[ModelUse, ModelOptions]] = ()
        self._seen: object = None  # the registry's snapshot at the last `check_idle`
        self._stopping = False

    async def ensure_loaded(self, model_name: str, queue_key: QueueKey | None = ANONYMOUS) -> None:
        """Return once the model is loaded. Concurrent requests share one load and continue in the
        order of their keys and priorities; None does not queue. A model that does not load on
        demand is left as it is.

        Raises ModelUnavailable if the load fails or finds no room; QueueFull, or QueueTimeout after
        the model's queue timeout.
        """
        registry = self._registry
        if registry.is_loaded(model_name) or not registry.loads_on_demand(model_name):
            return
        if queue_key is None:
            await asyncio.shield(self._begin_load(model_name))
            return
        await self._wait(model_name, queue_key, registry.is_loaded, self._begin_load)

    async def ensure_awake(self, model_name: str, queue_key: QueueKey) -> None:
        """Return once a loaded model no longer sleeps. Raises as `ensure_loaded` does."""
        if (sleep := self._sleep) is not None and sleep.is_sleeping(model_name):
            await self._wait(
                model_name, queue_key, lambda name: not sleep.is_sleeping(name), self.begin_wake
            )

    async def _wait(
        self,
        name: str,
        queue_key: QueueKey,
        is_ready: Callable[[str], bool],
        begin: Callable[[str], object],
    ) -> None:
        """Wait in the model's queue until it is ready; `begin` starts what makes it so."""
        max_size, timeout_s = self._limits_of_waiting(name)
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        use = self._registry.use(name)
        use.pin()  # from its readiness until the caller continues, without an await between
        try:
            while not is_ready(name):
                begin(name)
                left_s = max(0.0, deadline - clock())
                await self._queue(name).wait(1, queue_key, max_size=max_size, timeout_s=left_s)
        finally:
            use.unpin()

    def loading_together(
        self, names: Collection[str], queue_key: QueueKey
    ) -> AbstractAsyncContextManager[None]:
        """Enter it to load and wake the models for one request, which keeps each of them from then
        on. Raises ModelUnavailable if they never fit beside each other; QueueFull or QueueTimeout
        while other sets load that leave no room for it.
        """
        locks = self._registry.locks
        if not all(map(self._is_awake, names)):
            self._capacity.check_fit_together(names)
        elif not any(each in locks for each in names):
            return contextlib.nullcontext()
        limits = [self._limits_of_waiting(each) for each in names]
        max_size, timeout_s = max(size for size, _ in limits), min(wait_s for _, wait_s in limits)
        return self._groups.hold(
            frozenset(names), queue_key, max_size=max_size, timeout_s=timeout_s
        )

    def _is_awake(self, name: str) -> bool:
        is_asleep = self._sleep is not None and self._sleep.is_sleeping(name)
        return self._registry.is_loaded(name) and not is_asleep

    def drain(self) -> None:
        """Reject the requests that wait for a load: the server is shutting down. From now on, idle
        models stay as they are.
        """
        self._stopping = True
        self._groups.drain()
        for queue in self._queues.values():
            queue.reject_all()

    def begin_wake(self, name: str) -> None:
        """Start to wake a model, unless it wakes already. Idle models make room for it."""
        if self._sleep is None:
            return
        if name in self._falling_asleep:
            self._called.add(name)  # it wakes once it sleeps
        elif name not in self._changing:
            self._change(name, self._wake(name, self._sleep))

    def _change(self, name: str, work: Coroutine[Any, Any, GatewayError | None]) -> None:
        task = self._changing[name] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(self._changed, name))

    def _changed(self, name: str, task: asyncio.Task[GatewayError | None]) -> None:
        del self._changing[name]
        self._falling_asleep.discard(name)
        self._room_event.set()
        if not task.cancelled():
            self._let_continue(name, task.result())
        if name in self._called:
            self._called.discard(name)
            if not task.cancelled():
                self.begin_wake(name)

    async def _wake(self, name: str, sleep: ModelSleep) -> GatewayError | None:
        try:
            await self.wake(name)
        except GatewayError as error:
            logger.warning("model %s: could not be woken: %s", name, error.message)
            sleep.fail(name, error)
            return error
        return None

    async def wake(self, name: str) -> None:
        """Wake a model once its memory fits. Raises ModelUnavailable if it does not wake."""
        if self._sleep is None:
            return
        if self._limits.memory_bytes is None:  # it need not wait for loads
            if not await self._sleep.wake(name):
                await self._sleep.wait_for_restart(name)
            return
        try:
            await self._wake_with_room(name, self._sleep)
        finally:
            self._leave_waiting(name)

    async def _wake_with_room(self, name: str, sleep: ModelSleep) -> None:
        deadline = asyncio.get_running_loop().time() + self._limits.wait_s
        while True:
            async with self._load_lock:
                self._room_event.clear()
                fits = self._make_room(name)
                is_awake = fits and await sleep.wake(name)
            if is_awake:
                return
            if fits:
                await sleep.wait_for_restart(name)
                return
            await self._wait_for_room(deadline, name)

    async def _fall_asleep(self, name: str, level: int, sleep: ModelSleep) -> None:
        try:
            await sleep.sleep(name, level)
        except GatewayError as error:  # a request came, or an operator changes it
            self._not_slept[name] = time.monotonic()
            logger.warning("model %s: did not fall asleep: %s", name, error.message)

    def _start_sleep(self, name: str, sleep: ModelSleep) -> None:
        level = self._registry.options(name).sleep_level or 1
        self._falling_asleep.add(name)
        self._change(name, self._fall_asleep(name, level, sleep))

    def check_idle(self, _late_s: float = 0.0) -> None:
        """Start to unload the models that have served nothing for their `idle_unload_s`, and let
        those sleep that have served nothing for their `idle_sleep_s`. Called at each heartbeat.
        """
        registry = self._registry
        if self._stopping or not registry.has_loaded():
            return
        if self._load_lock.locked():  # it measures the memory
            return
        if self._seen is not registry.snapshot_id():
            self._seen = registry.snapshot_id()
            self._idle_options = [
                (registry.use(name), options)
                for name in registry.loaded()
                if (options := registry.options(name)).idle_sleep_s is not None
                or (options.idle_unload_s is not None and registry.loads_on_demand(name))
            ]
        now_s = time.monotonic()
        for use, options in self._idle_options:
            self._check_idle(use.model_name, now_s - use.last_used, options)

    def _check_idle(self, name: str, idle_s: float, options: ModelOptions) -> None:
        unload_s, sleep_s = options.idle_unload_s, options.idle_sleep_s
        if unload_s is not None and idle_s >= unload_s and self._may_evict(name):
            logger.info("model %s: unloading after %g s idle", name, unload_s)
            self._start_eviction(name)
        elif (
            (sleep := self._sleep) is not None
            and sleep_s is not None
            and idle_s >= sleep_s
            and self._may_evict(name)
            and self._may_sleep(name, sleep)
        ):
            self._start_sleep(name, sleep)

    def _may_sleep(self, name: str, sleep: ModelSleep) -> bool:
        """Whether it is awake, and has not just failed to fall asleep."""
        failed_s = self._not_slept.get(name)
        recently = failed_s is not None and time.monotonic() - failed_s < RETRY_S
        return not recently and not sleep.is_sleeping(name)

    def notify_idle(self) -> None:
        """Wake the loads that wait for an idle model."""
        self._room_event.set()

    async def close(self) -> None:
        """Cancel all loads and evictions; idle models stay as they are."""
        self._stopping = True
        tasks = [*self._loads.values(), *self._evictions.values(), *self._changing.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _limits_of_waiting(self, name: str) -> tuple[int, float]:
        """How many requests may wait for a load, as many as the model could run and queue; and for
        how many seconds.
        """
        own, general = self._registry.concurrency_limits(name), self._limits.requests
        running = own.max_concurrent_requests or general.max_concurrent_requests or 1
        queued = general.max_queue_size if own.max_queue_size is None else own.max_queue_size
        timeout_s = own.queue_timeout_s or general.queue_timeout_s or self._limits.wait_s
        return running + (queued or 0), timeout_s

    def _queue(self, name: str) -> WaitQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = WaitQueue(
                name,
                describe_load=partial(self._describe_wait, name),
                give_back=lambda _: None,
                known_wait_s=lambda: self._load_s.get(name),
                metrics=self._metrics,
            )
        return queue

    def _describe_wait(self, name: str) -> str:
        return f"The model '{name}' is {'loading' if name in self._loads else 'being woken'}"

    def _begin_load(self, name: str) -> asyncio.Task[None]:
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
        """Let the requests continue that waited for the load."""
        del self._loads[name]
        if task.cancelled():
            if (queue := self._queues.pop(name, None)) is not None:
                queue.reject_all()
        else:
            self._let_continue(name, task.exception())  # also if every waiter has left

    def _let_continue(self, name: str, error: BaseException | None) -> None:
        queue = self._queues.pop(name, None)
        if queue is None:
            return
        if error is not None:
            queue.reject_all(lambda: error)
        while queue:
            queue.serve(lambda wanted: wanted)

    async def _load(self, name: str) -> None:
        deadline = asyncio.get_running_loop().time() + self._limits.wait_s
        try:
            while not await self._load_if_it_fits(name):
                await self._wait_for_room(deadline, name)
        finally:
            self._leave_waiting(name)
            if name in self._to_measure:
                self._to_measure.discard(name)
                self._room_event.set()
        self._unload_for(name, 0)  # the load has only now shown its size

    def _leave_waiting(self, name: str) -> None:
        if self._waiting.pop(name, None) is not None:
            self._room_event.set()  # for those behind it

    async def _load_if_it_fits(self, name: str) -> bool:
        """Whether the model is loaded now. If not, idle models are being unloaded to make room."""
        await self._registry.locks.wait_until_free(name)
        async with self._load_lock:
            if self._registry.is_loaded(name):
                return True
            self._room_event.clear()
            if name in self._registry.locks or not self._make_room(name):
                self._to_measure.discard(name)  # a load that waits for room holds up no other
                return False
            if self._capacity.must_measure(name):
                if self._side_by_side:  # the end of one sets `_room_event`
                    self._to_measure.add(name)
                    return False
                await self._load_and_measure(name)
            elif self._to_measure:  # else these would wait for as long as others come
                return False
            else:
                self._side_by_side.add(name)  # it takes its room from now on
        if name in self._side_by_side:
            try:
                await self._load_model(name)
            finally:
                self._side_by_side.discard(name)
                self._room_event.set()
        return True

    async def _load_and_measure(self, name: str) -> None:
        before = await asyncio.to_thread(self._used_bytes)
        measurable = not self._evictions  # their memory would hide that of the load
        await self._load_model(name)
        added = await asyncio.to_thread(self._used_bytes) - before
        self._capacity.add_measurement(name, added, exact=measurable)
        logger.info("model %s: takes %d bytes", name, self._capacity.size_bytes(name))

    async def _load_model(self, name: str) -> None:
        begun_s = time.monotonic()
        try:
            await self._registry.load(name)
        except GatewayError as error:
            reason = " ".join(error.message.split()).removesuffix(";")
            self._failures[name] = (time.monotonic(), reason)
            raise ModelFailed(name, reason) from error
        self._failures.pop(name, None)
        self._load_s[name] = time.monotonic() - begun_s
        logger.info("model %s: loaded on demand in %.1f s", name, self._load_s[name])

    def _make_room(self, name: str) -> bool:
        """Whether the model fits, also once those have loaded that have waited for longer. If not,
        start to unload as many idle models as necessary, and note that it waits.
        """
        capacity = self._capacity
        capacity.check_fits(name)
        wanted = capacity.missing_bytes(name)
        earlier = itertools.takewhile(lambda each: each != name, self._waiting)
        ahead = [each for each in earlier if self._waiting[each] and each not in self._side_by_side]
        total = wanted + sum(map(capacity.missing_bytes, ahead))
        loaded = self._registry.loaded() | self._side_by_side
        fits_later = not capacity.is_full(loaded - self._evictions.keys(), total, name, len(ahead))
        if fits_later and not capacity.is_full(loaded, wanted, name):
            return True
        # Models ahead may need the whole budget: then no unload would help this one
        helps = not capacity.is_full(frozenset(), total, name, len(ahead))
        self._waiting[name] = helps and self._unload_for(name, total, len(ahead))
        return False

    def _unload_for(self, name: str, wanted: int, models: int = 0) -> bool:
        """Whether the sleeps and unloads that have begun make room for `wanted` bytes and for so
        many models beside this one; starts them.
        """
        loaded = self._registry.loaded() | self._side_by_side
        while self._capacity.is_full(loaded - self._evictions.keys(), wanted, name, models):
            if self._makes_room_by_sleep(loaded, name):
                return True
            victim = self._least_recently_used(but=name)
            if victim is None:
                return False
            logger.info("model %s: unloading to make room for %s", victim, name)
            self._start_eviction(victim)
        return True

    def _makes_room_by_sleep(self, loaded: frozenset[str], name: str) -> bool:
        """Whether a model falls asleep to make room. One at a time: only then is known how many
        bytes it frees.
        """
        sleep = self._sleep
        if sleep is None or self._capacity.too_many(loaded - self._evictions.keys(), name):
            return False
        if self._falling_asleep:
            return True
        idle = [
            each
            for each in loaded
            if each != name and self._registry.options(each).sleeps and self._may_evict(each)
        ]
        awake = [each for each in idle if self._may_sleep(each, sleep)]
        if not awake:
            return False
        victim = min(awake, key=lambda each: self._registry.use(each).last_used)
        logger.info("model %s: put to sleep to make room for %s", victim, name)
        self._start_sleep(victim, sleep)
        return True

    def _start_eviction(self, victim: str) -> None:
        self._evictions[victim] = asyncio.create_task(self._evict(victim))

    async def _evict(self, victim: str) -> None:
        try:
            if self._registry.use(victim).is_idle:  # no request came before this task ran
                await self._registry.unload(victim)
        except GatewayError as error:  # an operator changes it, or the server stops
            logger.warning("model %s: could not be unloaded: %s", victim, error.message)
        finally:
            del self._evictions[victim]
            self._room_event.set()

    async def _wait_for_room(self, deadline: float, name: str) -> None:
        remaining_s = deadline - asyncio.get_running_loop().time()
        if remaining_s <= 0:
            reason = "all loaded models are in use, or others load"
            raise ModelUnavailable(f"No room for the model '{name}': {reason}. Retry later.")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(remaining_s, _LOOK_AGAIN_S)):
                await self._room_event.wait()

    def _least_recently_used(self, *, but: str) -> str | None:
        idle = [
            name
            for name in self._registry.loaded()
            if name != but and self._registry.loads_on_demand(name) and self._may_evict(name)
        ]
        return min(idle, key=lambda name: self._registry.use(name).last_used, default=None)

    def _may_evict(self, name: str) -> bool:
        """Whether nothing uses or changes it. Calls of another model, by BLS, are not seen here: so
        a model that one calls is in use while that one is loaded.
        """
        caller = self._registry.options(name).ensemble
        return (
            self._registry.use(name).is_idle
            and (caller is None or not self._registry.is_loaded(caller))
            and name not in self._registry.locks
            and name not in self._evictions
            and name not in self._changing
        )


def process_memory_bytes() -> int:
    """Resident memory of this process and its descendants."""
    this = psutil.Process()
    return sum(_rss_bytes(process) for process in [this, *this.children(recursive=True)])


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:  # it has ended
        return 0
