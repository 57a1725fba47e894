"""The benchmark of models in a memory budget serves what it says."""

import pytest

from benchmarks import aiperf, model_swaps
from benchmarks.process_stat import Cores

pytestmark = pytest.mark.slow  # gateways of their own under load


def test_requests_for_more_models_than_fit(monkeypatch):
    monkeypatch.setattr(model_swaps, "_SETTLE_S", 0)
    monkeypatch.setattr(model_swaps, "_IDLE_S", 1)

    found = model_swaps.zipf(6, Cores(None, None))

    assert found.keys() == model_swaps.COLUMNS["zipf"].keys()
    assert found["requests"] > 0
    assert found["most_loaded"] == 5
    assert (found["lost"], found["over_budget"]) == (0, 0)


@pytest.mark.skipif(aiperf.missing() is not None, reason="aiperf is not installed")
def test_two_models_take_turns():
    found = model_swaps.alternate(4, Cores(None, None))

    assert found.keys() == model_swaps.COLUMNS["alternate"].keys()
    assert (found["requests"], found["lost"], found["wakes"]) == (4, 0, 4)
