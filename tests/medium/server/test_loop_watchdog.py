"""A blocked event loop is logged once, with the stack of the blocking call."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from openai_frontend.runtime.heartbeat import Heartbeat
from openai_frontend.server import loop_watchdog
from openai_frontend.server.loop_watchdog import LoopWatchdog
from tests.core.triton.waiting import until

THRESHOLD_S = 0.5
HALT_S = 1.2
BEATS_S = 0.005
STEP_S = 0.1
THREAD = "loop-watchdog"


class Clock:
    """The watchdog's clock. It stands still while a busy machine delays one of its threads."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.readings = 0  # of the watchdog's thread: two each time that it looks

    def monotonic(self) -> float:
        if threading.current_thread().name == THREAD:
            self.readings += 1
        return self.now_s

    def process_time(self) -> float:
        return 0.0

    def pass_time(self, seconds: float) -> None:
        """Blocks the caller. The watchdog looks at each step."""
        deadline = time.monotonic() + 60
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            looked = self.looked()
            while not looked():
                assert time.monotonic() < deadline
                time.sleep(0.001)

    def looked(self) -> Callable[[], bool]:
        """Tells whether the watchdog has looked since this call, from beginning to end."""
        begun = self.readings
        return lambda: self.readings >= begun + 4


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(loop_watchdog, "time", made)
    return made


def beats(every_s: float = BEATS_S) -> Heartbeat:
    return Heartbeat(busy_s=every_s, idle_s=every_s)


def a_careless_callback(clock: Clock) -> None:
    clock.pass_time(HALT_S)


def a_call_that_holds_the_interpreter() -> None:
    sum(range(10**8))  # one call of about a second, during which no other thread runs


async def watched(
    clock: Clock, *callbacks: Callable[[], None], watchdog: LoopWatchdog | None = None
) -> None:
    """Runs the callbacks on the loop, under a watchdog with a short threshold, which looks after
    each of them.
    """
    watchdog = watchdog or LoopWatchdog(beats(), threshold_s=THRESHOLD_S)
    watching = asyncio.create_task(watchdog.run())
    await until(clock.looked())
    for callback in callbacks:
        callback()
        await until(lambda: watchdog._beat_s == clock.now_s)
        for _ in range(2):
            await until(clock.looked())
    watching.cancel()
    await asyncio.wait([watching])


def of_the_loop(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without messages about a busy CPU."""
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if message.startswith("event loop")]


async def test_blocked_loop_is_logged(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """First its stack, then its duration."""

    await watched(clock, partial(a_careless_callback, clock))

    begun, over = of_the_loop(caplog)
    assert begun.startswith("event loop blocked for 0.6 s:")
    assert "in a_careless_callback\n    clock.pass_time(HALT_S)" in begun
    assert over == "event loop resumed after 1.2 s"


async def test_each_block_is_logged_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    await watched(clock, *[partial(a_careless_callback, clock)] * 2)

    assert ["blocked for" in message for message in of_the_loop(caplog)] == [True, False] * 2


async def test_short_callbacks_are_not_logged(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if there are many: the loop runs between them."""
    await watched(clock, *[partial(clock.pass_time, THRESHOLD_S - STEP_S)] * 3)

    assert of_the_loop(caplog) == []


async def test_blocked_interpreter_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Without a stack, since the call has ended by then."""
    watching = asyncio.create_task(LoopWatchdog(beats(0.05), threshold_s=THRESHOLD_S).run())
    await asyncio.sleep(0.1)

    a_call_that_holds_the_interpreter()

    await until(lambda: "a call held Python's interpreter" in caplog.text)
    watching.cancel()
    await asyncio.wait([watching])

    messages = [record.getMessage() for record in caplog.records]
    held = next(each for each in messages if "a call held Python's interpreter" in each)
    assert 'File "' not in held


async def test_threshold_can_be_lowered(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """As after the startup: blocks that were ignored before are logged."""
    watchdog = LoopWatchdog(beats(), threshold_s=10)

    def lose_patience() -> None:
        watchdog.threshold_s = THRESHOLD_S

    careless = partial(a_careless_callback, clock)
    await watched(clock, careless, lose_patience, careless, watchdog=watchdog)

    assert len(of_the_loop(caplog)) == 2
