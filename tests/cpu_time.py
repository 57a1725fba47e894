"""Budgets of CPU time that hold on a slower machine too.

A budget is written for the machine that this project's figures come from. Elsewhere it grows by as
much as that machine takes longer over a fixed piece of work; it never shrinks.
"""

import json
import time
from functools import lru_cache

# What `_work` takes on the machine of docs/benchmarks.md, quiet; measured as `slowness` does.
_NOMINAL_S = 0.0011
# Work with more objects than `_work` suffers more from a neighbour in the same caches.
_SHARED_CACHE = 1.5
_DOCUMENT = json.dumps([{"role": "user", "content": str(i), "n": i} for i in range(500)])


def _work() -> int:
    """The kind of work that a gateway does: objects, dictionaries and text."""
    total = 0
    for _ in range(2):
        for message in json.loads(_DOCUMENT):
            fields = {f"{name}.x": value for name, value in message.items()}
            total += len("".join(map(str, fields.values())))
    return total


def slowness() -> float:
    """How many times longer than on the reference machine work takes now: 1 or more.

    Measured again every 10 s, for another process on the same core slows it while it runs.
    """
    return _slowness_in(int(time.monotonic() // 10))


@lru_cache(maxsize=1)
def _slowness_in(_period: int) -> float:
    least = min(_timed() for _ in range(30))
    return max(1.0, least / _NOMINAL_S)


def _timed() -> float:
    begin = time.process_time()
    _work()
    return time.process_time() - begin


def budget(seconds: float) -> float:
    """What `seconds` of CPU time on the reference machine come to here, at most."""
    return seconds * slowness() * _SHARED_CACHE
