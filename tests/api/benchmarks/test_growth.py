"""The benchmark of growth serves what it says."""

import pytest

from benchmarks import growth
from benchmarks.process_stat import Cores

pytestmark = pytest.mark.slow  # a gateway of its own under load


def test_one_size_of_everything():
    size = growth.Size("2 of each", models=2, keys=2, adapters=2)

    # An idle gateway wakes up every 2 s: a shorter time may have no CPU time at all
    found = growth.measure(size, Cores(None, None), idle_s=5)

    assert found.keys() == growth.COLUMNS.keys()
    assert all(value > 0 for value in found.values())
