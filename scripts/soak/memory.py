"""Samples a process's resources each second and estimates how fast its memory grows. Knows no
gateway.
"""

import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    each_below: Mapping[str, int] = field(default_factory=dict)  # bytes by name and process id


def sample(process: psutil.Process) -> Sample:
    """Measure a process. A descendant that has just ended counts as zero."""
    below = dict[str, int]()
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            below[f"{child.name()} {child.pid}"] = child.memory_info().rss
    return Sample(
        time.monotonic(),
        process.memory_info().rss,
        sum(below.values()),
        process.num_threads(),
        process.num_fds(),
        below,
    )


def second_half(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Drop the first half, in which a process fills its pools and caches."""
    middle = (samples[0].at_s + samples[-1].at_s) / 2
    return [each for each in samples if each.at_s >= middle]


def slopes_mb_h(samples: Sequence[Sample]) -> dict[str, float]:
    """Return how fast the memory of each process grows that has all samples, and all memory below
    the first one.
    """
    always = set.intersection(*(set(each.each_below) for each in samples))
    series = {
        "memory": [each.memory_bytes for each in samples],
        "memory of processes below": [each.below_bytes for each in samples],
        **{
            f"memory of {name}": [each.each_below[name] for each in samples]
            for name in sorted(always)
        },
    }
    times = [each.at_s for each in samples]
    return {
        name: slope_mb_h(list(zip(times, values, strict=True))) for name, values in series.items()
    }


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
