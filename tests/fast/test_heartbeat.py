"""The pace of periodic checks, on a clock that the test moves."""

import asyncio

import pytest

from openai_frontend.runtime.heartbeat import Heartbeat
from tests.loop_clock import LoopClock

BUSY_S, IDLE_S = 1.0, 8.0


@pytest.fixture
def heartbeat() -> Heartbeat:
    return Heartbeat(busy_s=BUSY_S, idle_s=IDLE_S)


class Check:
    """Counts the beats that one sleeper gets."""

    def __init__(self, heartbeat: Heartbeat, every_s: float = 0.0) -> None:
        self.beats = 0
        self._heartbeat = heartbeat
        self._every_s = every_s

    async def run(self) -> None:
        while True:
            await self._heartbeat.next(self._every_s)
            self.beats += 1


async def pass_time(clock: LoopClock, seconds: float) -> None:
    """In steps that are shorter than any pace."""
    for _ in range(round(seconds / 0.25)):
        clock.move_on(0.25)
        for _ in range(4):  # timers, then those that they wake
            await asyncio.sleep(0)


@pytest.fixture
async def check(heartbeat, loop_clock):
    check = Check(heartbeat)
    task = asyncio.create_task(check.run())
    await asyncio.sleep(0)
    yield check
    task.cancel()
    await asyncio.wait([task])
    assert heartbeat._timer is None


async def test_idle_pace(check, loop_clock):
    await pass_time(loop_clock, 4 * IDLE_S + 1)

    assert check.beats == 4


async def test_a_request_sets_the_pace_at_once_and_its_end_resets_it(check, heartbeat, loop_clock):
    """The first beat comes after `busy_s`, however long the idle one would have taken."""
    running = True
    heartbeat.work.append(lambda: running)
    woken: list[bool] = []
    heartbeat.on_wake.append(lambda: woken.append(heartbeat.is_busy))
    running = False
    await pass_time(loop_clock, IDLE_S + 1)
    running = True
    heartbeat.begin()
    await pass_time(loop_clock, 3 * BUSY_S + 0.5)
    assert (check.beats, woken) == (4, [True])

    running = False
    await pass_time(loop_clock, BUSY_S)  # the last one of this pace
    await pass_time(loop_clock, IDLE_S - 1)
    assert (check.beats, heartbeat.is_busy) == (5, False)


async def test_short_requests_keep_the_pace(check, heartbeat, loop_clock):
    """None runs when a beat comes, but one has begun since the last."""
    for _ in range(5):
        heartbeat.begin()
        await pass_time(loop_clock, BUSY_S)

    assert check.beats == 5
    assert heartbeat.is_busy


async def test_busy_for_some_time(check, heartbeat, loop_clock):
    heartbeat.stay_busy(2.5 * BUSY_S)
    await pass_time(loop_clock, 4 * BUSY_S)

    assert (check.beats, heartbeat.is_busy) == (3, False)


async def test_rare_checks_share_beats(check, heartbeat, loop_clock):
    rare = Check(heartbeat, every_s=3 * BUSY_S)
    task = asyncio.create_task(rare.run())
    heartbeat.work.append(lambda: True)
    heartbeat.begin()
    await pass_time(loop_clock, 9 * BUSY_S + 0.5)
    task.cancel()

    assert (check.beats, rare.beats) == (9, 3)


async def test_delay_of_a_beat(check, heartbeat, loop_clock):
    """A callback that blocks the loop delays it."""
    late_s: list[float] = []
    heartbeat.on_beat.append(late_s.append)
    loop_clock.move_on(IDLE_S + 3)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert late_s == [pytest.approx(3, abs=0.5)]
