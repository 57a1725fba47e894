"""Percentiles, medians and slopes of measured values. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank: a value that was measured, never one between two."""
    if not values:
        raise ValueError("no values")
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(rank, 1) - 1]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How much y grows with each x, by least squares."""
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def moved(before: float, after: float) -> float:
    """By what share of the smaller one two values differ."""
    low, high = sorted((before, after))
    return high / low - 1


@dataclass(frozen=True, slots=True)
class Summary:
    """One figure over all rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """From one value a round."""
        return cls(statistics.median(values), min(values), max(values))
