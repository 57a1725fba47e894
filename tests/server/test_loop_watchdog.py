"""A halt of the event loop is told of once, with the lines that are to blame."""

import asyncio
import time

import pytest

from openai_frontend.server.loop_watchdog import LoopWatchdog

HALT_S = 0.6


def a_careless_callback() -> None:
    time.sleep(HALT_S)


def a_call_that_holds_the_interpreter() -> None:
    sum(range(3 * 10**7))  # one instruction of half a second or so: no other thread runs in it


async def watched(*callbacks, watchdog: LoopWatchdog | None = None) -> None:
    """Runs them on the loop, one after the other, under a watchdog of short patience."""
    watchdog = watchdog or LoopWatchdog(threshold_s=0.2, interval_s=0.05)
    watching = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0.1)
    for callback in callbacks:
        callback()
        await asyncio.sleep(0.2)
    watching.cancel()
    await asyncio.wait([watching])


def of_the_loop(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without those on a busy machine's CPU."""
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if message.startswith("event loop")]


async def test_a_halt(caplog: pytest.LogCaptureFixture) -> None:
    """The first line has its stack, the second its length."""

    await watched(a_careless_callback)

    begun, over = of_the_loop(caplog)
    assert begun.startswith("event loop blocked for 0.")
    assert "in a_careless_callback\n    time.sleep(HALT_S)" in begun
    assert over.startswith("event loop resumed after 0.")


async def test_two_halts(caplog: pytest.LogCaptureFixture) -> None:
    """Each is told of, and once."""

    await watched(a_careless_callback, a_careless_callback)

    assert ["blocked for" in message for message in of_the_loop(caplog)] == [True, False] * 2


async def test_a_loop_that_runs(caplog: pytest.LogCaptureFixture) -> None:
    """Short work is nothing to tell."""

    await watched(*[lambda: time.sleep(0.01)] * 3)

    assert of_the_loop(caplog) == []


async def test_a_call_that_holds_the_interpreter(caplog: pytest.LogCaptureFixture) -> None:
    """No stack, for by then the call has ended; but that there was one."""

    await watched(a_call_that_holds_the_interpreter)

    messages = [record.getMessage() for record in caplog.records]
    assert any("a call held Python's interpreter" in message for message in messages)


async def test_patience_that_ends(caplog: pytest.LogCaptureFixture) -> None:
    """As at a start: what was overlooked at first is told of from then on."""
    watchdog = LoopWatchdog(threshold_s=10, interval_s=0.05)

    def lose_patience() -> None:
        watchdog.threshold_s = 0.2

    await watched(a_careless_callback, lose_patience, a_careless_callback, watchdog=watchdog)

    assert len(of_the_loop(caplog)) == 2
