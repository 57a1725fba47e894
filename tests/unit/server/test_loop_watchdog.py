"""A blocked event loop is logged once, with the stack of the blocking call."""

import asyncio
import time

import pytest

from openai_frontend.server.loop_watchdog import LoopWatchdog

# Far above what a busy machine delays a thread that waits for a processor.
THRESHOLD_S = 0.5
HALT_S = 1.2


def a_careless_callback() -> None:
    time.sleep(HALT_S)


def a_call_that_holds_the_interpreter() -> None:
    sum(range(10**8))  # one call of about a second, during which no other thread runs


async def watched(*callbacks, watchdog: LoopWatchdog | None = None) -> None:
    """Runs the callbacks on the loop, under a watchdog with a short threshold."""
    watchdog = watchdog or LoopWatchdog(threshold_s=THRESHOLD_S, interval_s=0.05)
    watching = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0.1)
    for callback in callbacks:
        callback()
        await asyncio.sleep(0.2)
    watching.cancel()
    await asyncio.wait([watching])


def of_the_loop(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without messages about a busy CPU."""
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if message.startswith("event loop")]


async def test_blocked_loop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """First its stack, then its duration."""

    await watched(a_careless_callback)

    begun, over = of_the_loop(caplog)
    assert begun.startswith("event loop blocked for ")
    assert "in a_careless_callback\n    time.sleep(HALT_S)" in begun
    assert over.startswith("event loop resumed after ")


@pytest.mark.slow
async def test_each_block_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    await watched(a_careless_callback, a_careless_callback)

    assert ["blocked for" in message for message in of_the_loop(caplog)] == [True, False] * 2


async def test_short_callbacks_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    await watched(*[lambda: time.sleep(0.01)] * 3, watchdog=LoopWatchdog(interval_s=0.05))

    assert of_the_loop(caplog) == []


async def test_blocked_interpreter_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Without a stack, since the call has ended by then."""

    await watched(a_call_that_holds_the_interpreter)

    messages = [record.getMessage() for record in caplog.records]
    assert any("a call held Python's interpreter" in message for message in messages)


@pytest.mark.slow
async def test_threshold_can_be_lowered(caplog: pytest.LogCaptureFixture) -> None:
    """As after the startup: blocks that were ignored before are logged."""
    watchdog = LoopWatchdog(threshold_s=10, interval_s=0.05)

    def lose_patience() -> None:
        watchdog.threshold_s = THRESHOLD_S

    await watched(a_careless_callback, lose_patience, a_careless_callback, watchdog=watchdog)

    assert len(of_the_loop(caplog)) == 2
