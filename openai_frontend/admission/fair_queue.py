"""What waits for places: by priority, and within one in turns by key (deficit round robin).

Has no bound itself: `eviction_candidate` names the one to evict from a full queue. Never awaits.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import Generic, TypeVar

from openai_frontend.admission.queue_key import QueueKey

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items are hashable, and each is in the queue once. Adding, taking and removing one costs the
    same however many wait.
    """

    def __init__(self) -> None:
        self._turns: dict[Item, QueueKey] = {}
        self._lines: dict[int, _Line[Item]] = {}  # by priority; none is empty
        self._priorities: list[int] = []  # those of the lines, sorted

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, item: Item, turn: QueueKey) -> None:
        """At the end of its key's."""
        line = self._lines.get(turn.priority)
        if line is None:
            line = self._lines[turn.priority] = _Line()
            insort(self._priorities, turn.priority)
        line.add(item, turn.key)
        self._turns[item] = turn

    def take(self) -> tuple[Item, QueueKey]:
        """The next in turn leaves the queue; IndexError where nobody waits."""
        priority = self._priorities[0]
        item = self._lines[priority].take()
        turn = self._turns.pop(item)
        self._drop_if_empty(priority)
        return item, turn

    def charge(self, turn: QueueKey, turns: int) -> None:
        """What was taken took the places of so many more: its key sits out as many turns."""
        line = self._lines.get(turn.priority)
        if line is not None and turns > 0:  # where nobody else waits, nobody is owed anything
            line.charge(turn.key, turns)

    def remove(self, item: Item) -> bool:
        """Whether it was there."""
        turn = self._turns.pop(item, None)
        if turn is None:
            return False
        self._lines[turn.priority].remove(item, turn.key)
        self._drop_if_empty(turn.priority)
        return True

    def eviction_candidate(self, turn: QueueKey) -> Item | None:
        """Who would leave a full queue for a newcomer; None: the newcomer finds no place.

        It is the newest of the key that has most in the line of the lowest priority, where that
        line comes after the newcomer's or the key has two more than the newcomer's.
        """
        if not self._priorities or self._priorities[-1] < turn.priority:
            return None
        lowest = self._priorities[-1]
        line = self._lines[lowest]
        key, most = line.longest()
        if lowest == turn.priority and most < line.waiting(turn.key) + 2:
            return None
        return line.newest(key)

    def _drop_if_empty(self, priority: int) -> None:
        if not len(self._lines[priority]):
            del self._lines[priority]
            del self._priorities[bisect_left(self._priorities, priority)]


class _Line(Generic[Item]):
    """Those of one priority. A key stays in the rotation while it has items or owes turns."""

    def __init__(self) -> None:
        self._rotation: OrderedDict[str, OrderedDict[Item, None]] = OrderedDict()
        self._owed: dict[str, int] = {}  # by key, above 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, item: Item, key: str) -> None:
        self._rotation.setdefault(key, OrderedDict())[item] = None
        self._length += 1

    def take(self) -> Item:
        """Each turn that is sat out was owed for a place that was taken, so the loop costs no more
        than the places did.
        """
        while True:
            key, items = next(iter(self._rotation.items()))
            self._rotation.move_to_end(key)
            if key in self._owed:
                self._pay(key)
                self._drop_if_done(key)
                continue
            item, _ = items.popitem(last=False)
            self._length -= 1
            self._drop_if_done(key)
            return item

    def charge(self, key: str, turns: int) -> None:
        self._owed[key] = self._owed.get(key, 0) + turns
        self._rotation.setdefault(key, OrderedDict())

    def remove(self, item: Item, key: str) -> None:
        del self._rotation[key][item]
        self._length -= 1
        self._drop_if_done(key)

    def longest(self) -> tuple[str, int]:
        """The key with most items, and how many; of several the first in turn."""
        key = max(self._rotation, key=lambda each: len(self._rotation[each]))
        return key, len(self._rotation[key])

    def waiting(self, key: str) -> int:
        return len(self._rotation.get(key, ()))

    def newest(self, key: str) -> Item:
        return next(reversed(self._rotation[key]))

    def _pay(self, key: str) -> None:
        self._owed[key] -= 1
        if not self._owed[key]:
            del self._owed[key]

    def _drop_if_done(self, key: str) -> None:
        if not self._rotation[key] and key not in self._owed:
            del self._rotation[key]
