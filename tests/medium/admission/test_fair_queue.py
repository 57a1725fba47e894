"""The fair queue loses no item and starves no key."""

from collections import Counter
from collections.abc import Sequence
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openai_frontend.admission.queue import FairQueue, QueueKey
from tests.examples import scaled

A, B = QueueKey("a"), QueueKey("b")
TURNS = st.builds(QueueKey, st.sampled_from("abcd"), st.integers(-1, 1))


class AnyUse(RuleBasedStateMachine):
    """The model: items that were added, and not taken or removed yet."""

    @initialize()
    def empty(self) -> None:
        self.queue: FairQueue[int] = FairQueue()
        self.waiting: dict[int, QueueKey] = {}
        self.numbers = count()  # later items have higher ones

    @rule(turn=TURNS)
    def add(self, turn: QueueKey) -> None:
        number = next(self.numbers)
        self.queue.add(number, turn)
        self.waiting[number] = turn

    @precondition(lambda self: self.waiting)
    @rule(more=st.integers(0, 3))
    def take(self, more: int) -> None:
        """The lowest priority number runs first; a key's items keep their order."""
        taken, turn = self.queue.take()

        assert self.waiting.pop(taken) == turn
        assert all(turn.priority <= other.priority for other in self.waiting.values())
        assert all(taken < number for number, other in self.waiting.items() if other == turn)
        self.queue.charge(turn, more)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Only items that are still in the queue can be removed."""
        number = data.draw(st.sampled_from(sorted(self.waiting)))

        assert self.queue.remove(number)
        assert not self.queue.remove(number)
        del self.waiting[number]

    @rule(turn=TURNS)
    def give_way(self, turn: QueueKey) -> None:
        """The newest item of the key with most items in the last priority."""
        leaving = self.queue.eviction_candidate(turn)

        waiting = Counter(self.waiting.values())
        last = max((other.priority for other in waiting), default=turn.priority)
        most = max((n for other, n in waiting.items() if other.priority == last), default=0)
        if leaving is None:
            assert last < turn.priority or (last == turn.priority and most < waiting[turn] + 2)
            return
        other = self.waiting[leaving]
        assert (other.priority, waiting[other]) == (last, most)
        assert last > turn.priority or most >= waiting[turn] + 2
        assert leaving == max(number for number, its in self.waiting.items() if its == other)

    @invariant()
    def length(self) -> None:
        assert len(self.queue) == len(self.waiting)

    def teardown(self) -> None:
        left = [self.queue.take()[0] for _ in range(len(self.queue))]

        assert sorted(left) == sorted(self.waiting)


AnyUse.TestCase.settings = settings(max_examples=scaled(50), deadline=None)
TestAnyUse = AnyUse.TestCase


@settings(max_examples=scaled(50), deadline=None)
@given(
    waiting=st.lists(st.integers(1, 30), min_size=2, max_size=5),
    costs=st.lists(st.integers(1, 8), min_size=150, max_size=150),
)
def test_shares(waiting: Sequence[int], costs: Sequence[int]) -> None:
    """While several keys wait, none gets more places than another, but for those of one request:
    however many it has waiting, and however many places its requests take.
    """
    queue: FairQueue[tuple[int, int]] = FairQueue()
    for key, items in enumerate(waiting):
        for item in range(items):
            queue.add((key, item), QueueKey(str(key)))
    left, places = list(waiting), [0] * len(waiting)
    for cost in costs:
        if 0 in left:
            break
        (key, _), turn = queue.take()
        queue.charge(turn, cost - 1)
        left[key] -= 1
        places[key] += cost

        assert max(places) - min(places) <= max(costs) + 1


def test_single_request_overtakes_a_long_queue():
    """A new key's request is next but one, even if another key has a thousand queued."""
    queue: FairQueue[str] = FairQueue()
    for at in range(1000):
        queue.add(f"a{at}", A)
    queue.add("b", B)

    assert [queue.take()[0] for _ in range(3)] == ["a0", "b", "a1"]


def test_debt_remains_after_the_last_request():
    """A key that sends large requests one after the other gets no more than its share."""
    queue: FairQueue[str] = FairQueue()
    for at in range(4):
        queue.add(f"b{at}", B)
    queue.add("a0", A)
    order = [queue.take()[0], queue.take()[0]]
    queue.charge(A, 2)  # a0 took three places
    queue.add("a1", A)
    order += [queue.take()[0] for _ in range(4)]

    assert order == ["b0", "a0", "b1", "b2", "b3", "a1"]


def test_no_debt_without_other_waiting_requests():
    queue: FairQueue[str] = FairQueue()
    queue.add("a0", A)
    queue.take()
    queue.charge(A, 100)
    queue.add("a1", A)
    queue.add("b0", B)

    assert [queue.take()[0] for _ in range(2)] == ["a1", "b0"]


def test_lower_priority_number_runs_first():
    """However long the others have waited."""
    queue: FairQueue[str] = FairQueue()
    for name, priority in (("late", 5), ("usual", 0), ("early", -5), ("usual too", 0)):
        queue.add(name, QueueKey("a", priority))

    assert [queue.take()[0] for _ in range(4)] == ["early", "usual", "usual too", "late"]
