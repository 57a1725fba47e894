"""The time of the event loop, which a test moves on: a busy machine uses up no timeout."""

import asyncio


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
