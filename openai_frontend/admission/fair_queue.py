"""Orders waiting items by priority, and within a priority by deficit round robin between keys.

Has no bound itself: `eviction_candidate` names the item to evict from a full queue. Never awaits.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import Generic, TypeVar

from openai_frontend.admission.limits import QueueKey

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items are hashable and unique. Adding, taking and removing one take constant time."""

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
