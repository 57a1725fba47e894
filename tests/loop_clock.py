"""A pytest plugin: the time of the event loop, which a test moves on, so that a busy machine uses
up no timeout.
"""

import asyncio

import pytest


class LoopClock:
    """Replaces the `time` of asyncio's own loop, which its timers follow."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._time = loop.time
        self._moved_s = 0.0

    def __call__(self) -> float:
        return self._time() + self._moved_s

    def move_on(self, seconds: float) -> None:
        """Timers that are due then run in the next iterations of the loop."""
        self._moved_s += seconds


@pytest.fixture
async def loop_clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    """The clock of the test's own event loop."""
    loop = asyncio.get_running_loop()
    clock = LoopClock(loop)
    monkeypatch.setattr(loop, "time", clock)
    return clock
