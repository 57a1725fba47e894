"""Whether a run measured everything, with possible values. A run that did not shows nothing."""

import math
from collections.abc import Iterator, Mapping

from benchmarks.figures import C_FLOOR_FIGURES, FIGURES
from benchmarks.summary import Summary

NO_C_FLOOR = "floor in C"
# By construction: an engine of 64 streams with one token per step, or four.
_BOUNDS = {"tokens_per_chunk_64": (1, 64), "tokens_per_chunk_64_by_4": (3.5, math.inf)}


def problems(found: Mapping[str, Summary], skipped: Mapping[str, str]) -> Iterator[str]:
    """One line for each figure that is absent, unexpected or impossible."""
    expected = {figure.name for figure in FIGURES if figure.scenario not in skipped}
    if NO_C_FLOOR in skipped:
        expected -= {figure.name for figure in C_FLOOR_FIGURES}
    for name in sorted(expected ^ found.keys()):
        yield f"{name} was {'not ' if name in expected else ''}measured"
    for name, summary in found.items():
        low, high = _BOUNDS.get(name, (0, math.inf))
        if summary.median <= 0 or not low <= summary.median <= high:
            yield f"{name} is {summary.median:g}"
