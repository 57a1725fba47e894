"""The rule for inputs that block the event loop."""

import time

import pytest

from scripts.fuzz.held import held

FASTER = 0.02  # a limit of 1 ms, so that the tests are fast


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_input_that_blocks_the_loop_is_a_finding():
    """A check that takes too much CPU time in every try fails."""
    with pytest.raises(AssertionError, match="ms of CPU"):
        held(lambda _: busy(0.02), FASTER)(b"")


def test_single_pause_is_not_a_finding():
    """A delay that does not recur is not a property of the input."""
    times = [0.02, 0.0]

    held(lambda _: busy(times.pop(0)), FASTER)(b"")

    assert times == []


def test_waiting_is_not_a_finding():
    """Only CPU time counts, so that a busy machine causes no findings."""
    waits_s = []

    def wait(_: bytes) -> None:
        started = time.monotonic()
        time.sleep(0.02)
        waits_s.append(time.monotonic() - started)

    held(wait, FASTER)(b"")

    assert [wait_s >= 0.02 for wait_s in waits_s] == [True]


def test_finding_is_confirmed():
    """The confirmation gets the slow input and decides."""
    asked = []

    def deny(data: bytes) -> bool:
        asked.append(data)
        return False

    held(lambda _: busy(0.02), FASTER, confirmed=deny)(b"slow")

    assert asked == [b"slow"]
