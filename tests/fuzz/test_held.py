"""What the fuzzer takes for an input that holds the event loop."""

import time

import pytest

from tests.fuzz.held import held

FASTER = 0.02  # so that the tests take little time: 1 ms


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_an_input_that_holds_the_loop_is_a_finding():
    """A check that takes too much CPU each time fails."""
    with pytest.raises(AssertionError, match="ms of CPU"):
        held(lambda _: busy(0.02), FASTER)(b"")


def test_a_pause_is_no_finding():
    """What does not take long again is not a property of the input."""
    times = [0.02, 0.0]

    held(lambda _: busy(times.pop(0)), FASTER)(b"")

    assert times == []


def test_waiting_is_no_finding():
    """Only CPU time counts, so that a busy machine finds nothing."""
    waits_s = []

    def wait(_: bytes) -> None:
        started = time.monotonic()
        time.sleep(0.02)
        waits_s.append(time.monotonic() - started)

    held(wait, FASTER)(b"")

    assert [wait_s >= 0.02 for wait_s in waits_s] == [True]


def test_a_finding_is_confirmed():
    """The confirmation is asked about the slow input, and has the last word."""
    asked = []

    def deny(data: bytes) -> bool:
        asked.append(data)
        return False

    held(lambda _: busy(0.02), FASTER, confirmed=deny)(b"slow")

    assert asked == [b"slow"]
