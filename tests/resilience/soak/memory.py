"""What a process holds, looked at each second, and how fast it grows. Knows no gateway."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import psutil

MB = 1_000_000
_WINDOWS = 120  # of the half that is looked at: 7,000 pairs


@dataclass(frozen=True, slots=True)
class Sample:
    """One look."""

    at_s: float
    memory_bytes: int  # of the process itself
    below_bytes: int  # of all processes below it
    threads: int
    descriptors: int


def sample(process: psutil.Process) -> Sample:
    """A process below that has just ended counts nothing."""
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
    """What a process does first is to fill its pools and caches."""
    middle = (samples[0].at_s + samples[-1].at_s) / 2
    return [each for each in samples if each.at_s >= middle]


def slope_mb_h(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all points (Theil and Sen), of seconds and bytes: a jump or
    a peak, however high, does not move it.

    Each point is the least of a window: what a process holds between two bursts of work.
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
