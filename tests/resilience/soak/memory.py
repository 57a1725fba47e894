"""Samples a process's resources each second and estimates how fast its memory grows. Knows no
gateway.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import psutil

MB = 1_000_000
_WINDOWS = 120  # in the second half: 7,000 pairs


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement."""

    at_s: float
    memory_bytes: int  # of the process itself
    below_bytes: int  # of all its descendants
    threads: int
    descriptors: int


def sample(process: psutil.Process) -> Sample:
    """Measure a process. A descendant that has just ended counts as zero."""
    below = 0
    for child in process.children(recursive=True):
        try:
            below += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return Sample(
        time.monotonic(),
        process.memory_info().rss,
        below,
        process.num_threads(),
        process.num_fds(),
    )


def second_half(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Drop the first half, in which a process fills its pools and caches."""
    middle = (samples[0].at_s + samples[-1].at_s) / 2
    return [each for each in samples if each.at_s >= middle]


def slope_mb_h(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope between all points of seconds and bytes (Theil and Sen): one jump or
    peak of any height does not change it.

    Each point is the minimum of a window: the memory between two bursts of work.
    """
    least = [min(window, key=lambda point: point[1]) for window in _windows(points)]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in combinations(least, 2)
    ]
    return statistics.median(slopes) * 3600 / MB if slopes else 0.0


def _windows(points: Sequence[tuple[float, float]]) -> list[Sequence[tuple[float, float]]]:
    size = -(-len(points) // _WINDOWS)
    return [points[start : start + size] for start in range(0, len(points), size or 1)]
