"""Wait queues for requests: limits, priorities and fairness between keys. Knows no HTTP."""

import asyncio
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from openai_frontend.errors import QueueFull, QueueTimeout, ServerDraining


@dataclass(frozen=True, slots=True)
class ConcurrencyLimits:
    """A model's own limits; None: the server's default."""

    max_concurrent_requests: int | None = None
    max_queue_size: int | None = None
    queue_timeout_s: float | None = None


NO_LIMITS = ConcurrencyLimits()


@dataclass(frozen=True, slots=True)
class QueueKey:
    """Requests of one key queue in order; keys of the same priority share by round robin."""

    key: str = ""  # digest of the API key; all requests without a key share one queue
    priority: int = 0  # lower numbers run first


ANONYMOUS = QueueKey()


@dataclass(frozen=True, slots=True)
class TritonQueue:
    """The queue of Triton's dynamic batcher, as a model's config describes it."""

    levels: int = 0  # priority levels, of which 1 runs first; 0: first come, first served
    default_level: int = 0
    takes_timeouts: bool = False  # whether a request can set its own queue timeout

    def level(self, priority: int) -> int:
        """The level for a request's priority: lower numbers run first, 0 is the model's default.
        Returns 0 if there are no levels.
        """
        return max(1, min(self.default_level + priority, self.levels)) if self.levels else 0

    def priority(self, level: int) -> int:
        """The inverse of `level`; Triton replaces a level out of range by the model's default."""
        return level - self.default_level if 1 <= level <= self.levels else 0


NO_QUEUE = TritonQueue()


def triton_queue(config: Mapping[str, Any]) -> TritonQueue:
    """`config`: a model's config as JSON."""
    batching = config.get("dynamic_batching") or {}
    policies = [
        batching.get("default_queue_policy") or {},
        *(batching.get("priority_queue_policy") or {}).values(),
    ]
    return TritonQueue(
        int(batching.get("priority_levels", 0)),
        int(batching.get("default_priority_level", 0)),
        takes_timeouts=any(map(_takes_timeouts, policies)),
    )


def _takes_timeouts(policy: Mapping[str, Any]) -> bool:
    """A request can only shorten the policy's timeout, so the policy must have one."""
    return bool(policy.get("allow_timeout_override")) and bool(
        int(policy.get("default_timeout_microseconds", 0))
    )


_SMOOTHING = 0.1  # exponential moving average over about the last 20 intervals
MIN_RETRY_S, MAX_RETRY_S = 0.1, 60.0  # OpenAI's SDKs honour Retry-After up to 60 s


class ServiceRateEstimator:
    """Tracks the interval between two requests leaving the queue, for Retry-After headers. The
    caller passes the time.
    """

    def __init__(self) -> None:
        self._interval_s: float | None = None  # None until a request has left the queue
        self._last_s: float | None = None  # when a request last left, or began to wait

    def begin(self, now_s: float) -> None:
        """A request enters the empty queue."""
        self._last_s = now_s

    def moved(self, now_s: float) -> None:
        """A queued request was admitted."""
        if self._last_s is None:
            self._last_s = now_s
        interval_s, self._last_s = now_s - self._last_s, now_s
        if self._interval_s is None:
            self._interval_s = interval_s
        else:
            self._interval_s += _SMOOTHING * (interval_s - self._interval_s)

    def retry_after_s(self, ahead: int, now_s: float) -> float:
        """Estimated seconds until `ahead` requests have left the queue.

        A queue that has been stuck for longer than its average interval counts as that slow.
        """
        since_s = 0.0 if self._last_s is None else now_s - self._last_s
        if self._interval_s is None and since_s <= 0:
            return 1.0
        interval_s = max(self._interval_s or 0.0, since_s)
        return min(max(MIN_RETRY_S, ahead * interval_s), MAX_RETRY_S)


class QueueMetrics(Protocol):
    """Receives the events of the queues, for metrics."""

    def queue_changed(self, model: str, waiting: int) -> None:
        """The length of a model's queue has changed."""

    def unreleased_changed(self, model: str, count: int) -> None:
        """`count` cancelled requests are not released by Triton yet."""

    def queued(self, model: str, seconds: float) -> None:
        """A request has left the queue, admitted or not, after this time."""


class _Waiter:
    """One request; the future's result is the number of slots it was granted."""

    __slots__ = ("future", "wanted")

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def reject(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class WaitQueue:
    """`serve` hands free slots to the next request in the queue."""

    def __init__(
        self,
        model_name: str,
        *,
        describe_load: Callable[[], str],
        give_back: Callable[[int], None],
        known_wait_s: Callable[[], float | None] = lambda: None,
        metrics: QueueMetrics | None = None,
        queued_for: str = "this model",
    ) -> None:
        """Error messages quote `describe_load` and `queued_for`. `give_back` takes back the slots
        that were granted to a request at the moment when it was cancelled. `known_wait_s`: how long
        requests wait for the model itself, for Retry-After headers; None if the queue's pace
        decides.
        """
        self._model_name = model_name
        self._describe_load, self._queued_for = describe_load, queued_for
        self._give_back = give_back
        self._known_wait_s = known_wait_s
        self._metrics = metrics
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._rate = ServiceRateEstimator()

    def __len__(self) -> int:
        return len(self._queue)

    def check(self, queue_key: QueueKey, max_size: int) -> None:
        """Raises QueueFull if a new request would be rejected: the queue has `max_size` requests,
        and none to evict.
        """
        if len(self._queue) >= max_size and self._queue.eviction_candidate(queue_key) is None:
            raise self.full()

    async def wait(
        self, wanted: int, queue_key: QueueKey, *, max_size: int, timeout_s: float
    ) -> int:
        """Waits for up to `wanted` slots, and returns the number granted.

        Raises QueueFull, QueueTimeout or ServerDraining. Cancelling it leaves the queue.
        """
        self._make_room(queue_key, max_size)
        loop = asyncio.get_running_loop()
        waiter, started_s = _Waiter(wanted), loop.time()
        if not self._queue:
            self._rate.begin(started_s)
        self._queue.add(waiter, queue_key)
        self._report_length()
        timer = loop.call_later(timeout_s, self._on_timeout, waiter, timeout_s)
        try:
            granted = await waiter.future
        except asyncio.CancelledError:
            if _was_granted(waiter.future):
                self._give_back(waiter.future.result())
            raise
        finally:
            timer.cancel()
            self._queue.remove(waiter)
            self._report_left(loop.time() - started_s)
        return granted

    def serve(self, grant: Callable[[int], int]) -> None:
        """Admits the next request. `grant` returns the slots it gets of those that it wants."""
        while self._queue:
            waiter, queue_key = self._queue.take()
            if waiter.future.done():  # cancelled or rejected, and still about to leave the queue
                continue
            granted = grant(waiter.wanted)
            self._queue.charge(queue_key, granted - 1)
            self._rate.moved(waiter.future.get_loop().time())
            waiter.future.set_result(granted)
            return

    def reject_all(self, error: Callable[[], BaseException] = ServerDraining) -> None:
        """Fails all queued requests; by default because the server is draining."""
        while self._queue:
            self._queue.take()[0].reject(error())

    def full(self) -> QueueFull:
        return QueueFull(self._load(), retry_after_s=self._retry_after_s())

    def _make_room(self, queue_key: QueueKey, max_size: int) -> None:
        """Evicts a request of the key with most requests, in favour of a key with fewer."""
        if len(self._queue) < max_size:
            return
        evicted = self._queue.eviction_candidate(queue_key)
        if evicted is None:
            raise self.full()
        self._queue.remove(evicted)
        evicted.reject(self.full())

    def _on_timeout(self, waiter: _Waiter, waited_s: float) -> None:
        self._queue.remove(waiter)
        message = f"The request waited {waited_s:g} s in the queue. {self._load()}"
        waiter.reject(QueueTimeout(message, retry_after_s=self._retry_after_s()))

    def _load(self) -> str:
        return f"{self._describe_load()}; {len(self._queue)} queued for {self._queued_for}."

    def _retry_after_s(self) -> float:
        if (known_s := self._known_wait_s()) is not None:
            return min(max(MIN_RETRY_S, known_s), MAX_RETRY_S)
        ahead = max(1, len(self._queue))
        return self._rate.retry_after_s(ahead, asyncio.get_running_loop().time())

    def _report_length(self) -> None:
        if self._metrics is not None:
            self._metrics.queue_changed(self._model_name, len(self._queue))

    def _report_left(self, waited_s: float) -> None:
        self._report_length()
        if self._metrics is not None:
            self._metrics.queued(self._model_name, waited_s)


def _was_granted(future: "asyncio.Future[int]") -> bool:
    """Whether the slots were granted before the waiting task could run."""
    return future.done() and not future.cancelled() and future.exception() is None


Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Orders waiting items by priority, and within a priority by deficit round robin between keys.

    Has no bound itself: `eviction_candidate` names the item to evict from a full queue. Never
    awaits. Items are hashable and unique. Adding, taking and removing one take constant time."""

    def __init__(self) -> None:
        self._keys: dict[Item, QueueKey] = {}
        self._levels: dict[int, _Level[Item]] = {}  # by priority; none is empty
        self._priorities: list[int] = []  # of the levels, sorted

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, item: Item, queue_key: QueueKey) -> None:
        level = self._levels.get(queue_key.priority)
        if level is None:
            level = self._levels[queue_key.priority] = _Level()
            insort(self._priorities, queue_key.priority)
        level.add(item, queue_key.key)
        self._keys[item] = queue_key

    def take(self) -> tuple[Item, QueueKey]:
        """Removes and returns the next item. Raises IndexError if the queue is empty."""
        priority = self._priorities[0]
        item = self._levels[priority].take()
        queue_key = self._keys.pop(item)
        self._drop_if_empty(priority)
        return item, queue_key

    def charge(self, queue_key: QueueKey, turns: int) -> None:
        """The item taken last used `turns` slots more than one: its key skips as many turns."""
        level = self._levels.get(queue_key.priority)
        if level is not None and turns > 0:  # without other items there is nothing to share
            level.charge(queue_key.key, turns)

    def remove(self, item: Item) -> bool:
        """Returns whether the item was in the queue."""
        queue_key = self._keys.pop(item, None)
        if queue_key is None:
            return False
        self._levels[queue_key.priority].remove(item, queue_key.key)
        self._drop_if_empty(queue_key.priority)
        return True

    def eviction_candidate(self, queue_key: QueueKey) -> Item | None:
        """The item to evict from a full queue in favour of a new one; None: reject the new one.

        It is the newest item of the key with most items at the lowest priority, if that priority is
        below the new item's, or if the key has at least two items more than the new item's key.
        """
        if not self._priorities or self._priorities[-1] < queue_key.priority:
            return None
        lowest = self._priorities[-1]
        level = self._levels[lowest]
        key, most = level.longest()
        if lowest == queue_key.priority and most < level.waiting(queue_key.key) + 2:
            return None
        return level.newest(key)

    def _drop_if_empty(self, priority: int) -> None:
        if not len(self._levels[priority]):
            del self._levels[priority]
            del self._priorities[bisect_left(self._priorities, priority)]


class _Level(Generic[Item]):
    """The items of one priority. A key stays in the rotation while it has items or a debt."""

    def __init__(self) -> None:
        self._rotation: OrderedDict[str, OrderedDict[Item, None]] = OrderedDict()
        self._debt: dict[str, int] = {}  # turns to skip by key, above 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, item: Item, key: str) -> None:
        self._rotation.setdefault(key, OrderedDict())[item] = None
        self._length += 1

    def take(self) -> Item:
        """Each skipped turn was charged for a granted slot, so the loop costs no more than granting
        the slots did.
        """
        while True:
            key, items = next(iter(self._rotation.items()))
            self._rotation.move_to_end(key)
            if key in self._debt:
                self._pay(key)
                self._drop_if_done(key)
                continue
            item, _ = items.popitem(last=False)
            self._length -= 1
            self._drop_if_done(key)
            return item

    def charge(self, key: str, turns: int) -> None:
        self._debt[key] = self._debt.get(key, 0) + turns
        self._rotation.setdefault(key, OrderedDict())

    def remove(self, item: Item, key: str) -> None:
        del self._rotation[key][item]
        self._length -= 1
        self._drop_if_done(key)

    def longest(self) -> tuple[str, int]:
        """The key with most items, and their number; of several the first in the rotation."""
        key = max(self._rotation, key=lambda each: len(self._rotation[each]))
        return key, len(self._rotation[key])

    def waiting(self, key: str) -> int:
        return len(self._rotation.get(key, ()))

    def newest(self, key: str) -> Item:
        return next(reversed(self._rotation[key]))

    def _pay(self, key: str) -> None:
        self._debt[key] -= 1
        if not self._debt[key]:
            del self._debt[key]

    def _drop_if_done(self, key: str) -> None:
        if not self._rotation[key] and key not in self._debt:
            del self._rotation[key]
