"""Spreads many small pieces of work over iterations of the event loop, without threads."""

import asyncio
from collections import deque

SLICE_US = 1000.0  # per iteration for all such work, and so what other work waits at most


class TimeSlicer:
    """Grants the event loop's time, first come, first served."""

    def __init__(self) -> None:
        self._left_us = SLICE_US
        self._waiting: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._scheduled = False  # the next slice

    async def take(self, cost_us: float) -> None:
        """Return immediately if this slice has time left, else in a later slice."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start_slice)
        if self._left_us > 0:
            self._left_us -= cost_us
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((cost_us, granted))
        await granted

    def _start_slice(self) -> None:
        """Serve waiting work. If none waits, the next `take` schedules the next slice."""
        self._left_us = SLICE_US
        while self._waiting and self._left_us > 0:
            cost_us, granted = self._waiting.popleft()
            if not granted.done():  # its caller may have been cancelled
                granted.set_result(None)
                self._left_us -= cost_us
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._start_slice)
