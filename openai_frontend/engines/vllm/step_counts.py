"""Histograms of an engine's steps: the tokens of each, and the time from one to the next. Runs in
the EngineCore process.
"""

from bisect import bisect_left
from typing import Any

# vLLM 0.32's own bounds (v1/metrics/buckets.py)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip


class Histogram:
    """What was seen so far."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # the last is of what is above all bounds
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """The value was seen so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def told(self) -> dict[str, Any]:
        """As messages between processes have it: `counts` between the bounds, and their `sum`."""
        return {"counts": list(self._counts), "sum": self._sum}


class StepCounts:
    """Costs under 1 us for a step, whatever the number of its requests."""

    def __init__(self) -> None:
        self._tokens = Histogram(TOKENS)
        self._seconds = Histogram(SECONDS)
        self._last_s: float | None = None

    def add(self, step: Any, now_s: float) -> None:
        """`step`: vLLM's SchedulerOutput, whose outputs have come now."""
        if not step.total_num_scheduled_tokens:
            return
        self._tokens.add(step.total_num_scheduled_tokens)
        said = step.scheduled_cached_reqs.num_output_tokens  # so far, of each that ran before
        going_on = len(said) - said.count(0)
        if going_on and self._last_s is not None:
            self._seconds.add(now_s - self._last_s, going_on)
        self._last_s = now_s

    def told(self) -> dict[str, Any]:
        """Both histograms: `tokens` of a step, `seconds` between two, once for each request that
        got a further token by the second.
        """
        return {"tokens": self._tokens.told(), "seconds": self._seconds.told()}
