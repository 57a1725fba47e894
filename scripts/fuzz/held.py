"""No input may block the event loop: a target's `check` takes at most 50 ms of CPU time."""

import time
from collections.abc import Callable

from scripts.fuzz.targets import target
from tests.cpu_time import budget

MAX_HELD_S = 0.05
_TRIES = 4  # a pause of the machine is not a finding
# Their inputs are an operator's files, or long texts that measure how the time grows.
_NOT_ON_THE_LOOP = {"keys_file", "model_options", "output_parser_time", "settings_file"}


def check_of(
    name: str, slower: float = 1.0, confirmed: Callable[[bytes], bool] = lambda _: True
) -> Callable[[bytes], None]:
    """Return a target's check, with the time limit if its code runs on the event loop."""
    check = target(name).check
    return check if name in _NOT_ON_THE_LOOP else held(check, slower, confirmed)


def held(
    check: Callable[[bytes], None],
    slower: float = 1.0,
    confirmed: Callable[[bytes], bool] = lambda _: True,
) -> Callable[[bytes], None]:
    """Return the check; it also raises AssertionError if the input takes too long in every try.

    Most of the code that a check runs also runs on the event loop for such an input. A fuzzer's
    instrumentation makes the code slower, about by the factor `slower`, so `confirmed` decides.
    """

    def checked(data: bytes) -> None:
        limit = budget(MAX_HELD_S) * slower
        took_s = [_seconds(check, data)]
        while took_s[-1] > limit and len(took_s) < _TRIES:
            took_s.append(_seconds(check, data))
        least = min(took_s)
        if least > limit and confirmed(data):
            raise AssertionError(f"{least * 1000:.0f} ms of CPU, at most {limit * 1000:.0f}")

    return checked


def _seconds(check: Callable[[bytes], None], data: bytes) -> float:
    started = time.thread_time()
    check(data)
    return time.thread_time() - started
