"""CPU time budgets that also hold on a slower machine.

A budget is written for the machine of this project's figures. On a slower machine it grows by the
ratio of the times for a fixed piece of work; it never shrinks.
"""

import json
import time
from collections.abc import Callable
from functools import lru_cache

# Time of `_work` on the idle machine of docs/benchmarks.md, measured as in `slowness`.
_NOMINAL_S = 0.0011
_ATTEMPTS = 4
_DOCUMENT = json.dumps([{"role": "user", "content": str(i), "n": i} for i in range(500)])


def _work() -> int:
    """Work like a gateway's: objects, dictionaries and text."""
    total = 0
    for _ in range(2):
        for message in json.loads(_DOCUMENT):
            fields = {f"{name}.x": value for name, value in message.items()}
            total += len("".join(map(str, fields.values())))
    return total


def slowness() -> float:
    """Factor by which work takes longer now than on the reference machine: 1 or more.

    Measured again every 10 s, because another process on the same core slows it.
    """
    return _slowness_in(int(time.monotonic() // 10))


@lru_cache(maxsize=1)
def _slowness_in(_period: int) -> float:
    return _slowness_now()


def _slowness_now() -> float:
    least = min(_timed() for _ in range(30))
    return max(1.0, least / _NOMINAL_S)


def _timed() -> float:
    begin = time.process_time()
    _work()
    return time.process_time() - begin


def budget(seconds: float) -> float:
    """The maximum on this machine for `seconds` of CPU time on the reference machine."""
    return seconds * slowness()


def within_budget(measure: Callable[[], float], seconds: float) -> bool:
    """Whether one of a few measurements, in seconds, is within the budget.

    For the CPU time of another process, and for times on a clock: what slows them for a while need
    not slow this process.
    """
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(1)
        if measure() < seconds * _slowness_now():
            return True
    return False
