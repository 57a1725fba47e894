from itertools import pairwise
from typing import Any, cast

import pytest

from benchmarks.connection import Caller
from benchmarks.load import Load
from benchmarks.schedule import Arrivals


class _Answerless:
    """Remembers when its only request was due."""

    def __init__(self) -> None:
        self.idle = True
        self.due_s = 0.0

    def send(self, due_s: float) -> None:
        self.idle, self.due_s = False, due_s


def sent(requests: int, **options: Any) -> list[float]:
    """The due times of so many requests, each on a connection of its own."""
    load = Load(port=0, pids={}, warm_up_s=0, measured_s=0, **options)
    callers = [_Answerless() for _ in range(load.connections)]

    def add() -> Caller:
        callers.append(_Answerless())
        return cast(Caller, callers[-1])

    arrivals = Arrivals.of(load, cast(list[Caller], callers), add)
    while not arrivals.finished and sum(not each.idle for each in callers) < requests:
        arrivals.send()
    return [each.due_s for each in callers if not each.idle]


def gaps(due_s: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(due_s)]


def test_connections_of_a_closed_loop_begin_one_after_the_other():
    """Each once, within the spread: answers of one length would all end and start together."""

    due_s = sent(99, connections=4, spread_s=0.02)

    assert gaps(due_s) == pytest.approx([0.005] * 3)


def test_connections_begin_together_without_a_spread():
    assert gaps(sent(99, connections=4)) == [0.0] * 3


def test_open_loop_opens_connections_at_its_rate():
    """It does not end by itself, and waits for no answer."""

    due_s = sent(5, connections=1, rate_per_s=200.0)

    assert len(due_s) >= 5
    assert gaps(due_s) == pytest.approx([0.005] * (len(due_s) - 1))
