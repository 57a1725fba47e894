"""A soak fails on a leak, an error or anything left behind, and passes otherwise."""

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.soak.memory import Sample, slope_mb_h
from scripts.soak.report import Tally, report
from scripts.soak.soak import Plan, soak

LEAK_BYTES = 1024 * 1024


@pytest.mark.slow
async def test_a_deliberate_leak_fails(tmp_path: Path) -> None:
    """The engine leaks a megabyte per request: the slope shows it, and nothing else fails. A quiet
    machine leaks 15 times what it must, because a busy one serves fewer requests. If the gateway
    stands still in the half that counts, there is no slope, and another soak.
    """
    plan = Plan(
        seconds=6, seed=7, clients=6, noise_mb=20, leak_bytes=LEAK_BYTES,
        scenarios=("chat", "chat_stream"),
    )  # fmt: skip

    for number in range(4):
        found = await soak(tmp_path / str(number), plan)
        if found.failures:
            break

    (failure,) = found.failures

    assert failure.startswith("memory grows by ")


def samples(memory: list[float]) -> list[Sample]:
    return [Sample(at, int(1e6 * held), 0, 9, 9) for at, held in enumerate(memory)]


@pytest.mark.parametrize(
    ("memory", "slope"),
    [
        ([100.0] * 600, 0),
        ([100 + at / 3600 for at in range(600)], 1),
        ([100.0] * 300 + [130.0] * 10 + [100.0] * 290, 0),
        ([100 + at % 7 + at / 360 for at in range(3600)], 10),
        ([100.0] * 590 + [200.0] * 10, 0),
    ],
    ids=["flat", "one MB an hour", "a peak", "a leak below a saw", "a jump at the end"],
)
def test_the_slope_ignores_peaks_and_jumps(memory: list[float], slope: float) -> None:
    """Only steady growth counts."""
    points = [(each.at_s, float(each.memory_bytes)) for each in samples(memory)]

    assert slope_mb_h(points) == pytest.approx(slope, abs=0.2)


def test_the_csv_has_every_sample() -> None:
    """One per second, to trace growth."""
    seen = samples([100.0, 101.5, 100.0, 100.0])
    found = report({}, seen, seed=1, left="", slope_limit_mb_h=1, noise_mb=3)

    assert list(csv.DictReader(found.samples_csv().splitlines()))[:2] == [
        {
            "at_s": at_s,
            "memory_bytes": held,
            "below_bytes": "0",
            "threads": "9",
            "descriptors": "9",
        }
        for at_s, held in (("0.0", "100000000"), ("1.0", "101500000"))
    ]


def test_growth_of_one_process_below_is_found() -> None:
    """Even if another one shrinks. A process that ends or starts midway has no slope."""
    seen = [
        replace(
            each, below_bytes=500_000_000,
            each_below={"worker 5": 10**8 + at * 5000, f"worker {90 + at // 3000}": 1},
        )
        for at, each in enumerate(samples([100.0] * 3600))
    ]  # fmt: skip
    found = report({}, seen, seed=1, left="", slope_limit_mb_h=1, noise_mb=3)

    assert found.failures == ["memory of worker 5 grows by 18.0 MB an hour"]
    assert [*found.slopes_mb_h] == ["memory", "memory of processes below", "memory of worker 5"]


def failures(memory: list[float], tally: Tally, left: str = "") -> list[str]:
    found = report(
        {"chat": tally}, samples(memory), seed=1, left=left, slope_limit_mb_h=1, noise_mb=3
    )
    assert all(f"FAILED: {each}" in found.text() for each in found.failures)
    return found.failures


def test_errors_idle_scenarios_growth_and_leftovers_are_the_only_failures() -> None:
    """Growth counts if it exceeds the limit in the second half."""
    good, flat = Tally(seconds=[0.1] * 10), [100.0] * 3600
    bad = Tally(seconds=[0.1], errors=Counter({"Unexpected: 500": 2}))
    growing = [100 + at / 400 for at in range(3600)]  # 9 MB an hour: 4.5 MB in the half

    assert failures(flat, good) == []
    assert failures(growing, good) == ["memory grows by 9.0 MB an hour"]
    assert failures(growing[:60], good) == []  # a minute cannot tell that from noise
    assert failures(flat, bad) == ["chat: 2 x Unexpected: 500"]
    assert failures(flat, Tally()) == ["chat: no request succeeded"]
    assert failures(flat, good, left="threads: 1 before, 2 now") == ["threads: 1 before, 2 now"]


def test_errors_of_models_whose_process_was_killed_are_no_failures() -> None:
    """They are counted, beside what was killed. Memory of processes that start is not compared."""
    seen = [
        replace(each, below_bytes=10**8 + at * 5000, each_below={"stub 5": 10**8 + at * 5000})
        for at, each in enumerate(samples([100.0] * 3600))
    ]
    found = report(
        {"ensemble": Tally(seconds=[0.1], lost=3)}, seen, seed=1, left="", slope_limit_mb_h=1,
        noise_mb=3, killed={"stubs": 2, "engines": 1},
    )  # fmt: skip

    assert found.failures == []
    assert (
        "killed or stopped: stubs 2, engines 1; requests that ended with that error: ensemble 3"
        in found.text()
    )


def test_report_of_a_run_without_failures() -> None:
    """Both forms say so."""
    tally = Tally(seconds=[0.1] * 10)
    found = report(
        {"chat": tally}, samples([100.0] * 60), seed=1, left="", slope_limit_mb_h=1, noise_mb=3
    )

    assert "nothing is left" in found.text()
    assert b'"failures": []' in found.json()
