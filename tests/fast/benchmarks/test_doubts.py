from typing import Any

import pytest

from benchmarks import budgets
from benchmarks.load import Measured
from benchmarks.measurement import Round
from benchmarks.noise import doubts, undoubted
from benchmarks.summary import Summary


def floor(*, cpu_s: float = 1.0, chunks: int = 100_000) -> Measured:
    return Measured(seconds=2.0, cpu_s={"server": cpu_s}, chunks=chunks)


def loaded(name: str = "64", **of_load: Any) -> Round:
    return Round(loads={name: Measured(seconds=10.0, **of_load)})


def summary(value: float) -> Summary:
    return Summary.of([value])


def test_quiet_round_has_no_doubts():
    """The floor moves and the server waits by less than a tenth."""

    assert doubts(floor(), loaded(server_wait_s=0.9), floor(cpu_s=1.09)) == []


@pytest.mark.parametrize(
    ("done", "after", "text", "clock_only"),
    [
        (loaded(), floor(cpu_s=1.2), "CPU per chunk moved by 20%", False),
        (loaded(), floor(cpu_s=0.5, chunks=50_000), "chunks per second moved by 100%", True),
        (Round(figures={"late_p99_ms_open": 1.5}), floor(), "sent 1.5 ms late", True),
        (loaded(server_wait_s=2.0), floor(), "others held the server's core for 20%", True),
    ],
)
def test_disturbed_round_has_a_mark(done, after, text, clock_only):
    """Each disturbance has its own mark, which says whether CPU time is still valid."""

    [doubt] = doubts(floor(), done, after)
    assert text in doubt.text
    assert doubt.clock_only == clock_only


def test_busy_machine_affects_rates_first():
    """A round with doubtful rates is still valid for CPU time."""

    rounds = [loaded(server_wait_s=2.0)]
    marks = [doubts(floor(), rounds[0], floor())]

    assert undoubted(rounds, marks, by_clock=True) == []
    assert undoubted(rounds, marks, by_clock=False) == rounds


def test_only_required_budgets_can_be_missed():
    """Designed budgets are goals; a required figure that is absent is missed too."""

    bad = {"cpu_us_per_chunk_64": summary(25.1), "cpu_us_besides_chat": summary(9999)}
    good = {"cpu_us_per_chunk_64": summary(24.9)}

    assert budgets.missed(bad, by_clock=False) == ["cpu_us_per_chunk_64"]
    assert budgets.missed(good, by_clock=False) == []
    assert budgets.missed({"chunks_per_s_64": summary(40_001)}, by_clock=True) == []
    assert budgets.missed({}, by_clock=True) == ["chunks_per_s_64"]
