"""Work of many small pieces, a few of them in each turn of the event loop. Never a thread."""

import asyncio
from collections import deque

SLICE_US = 1000.0  # of one turn for all such work; others wait no longer for theirs


class TimeSlicer:
    """Hands out the event loop's time, first come, first served."""

    def __init__(self) -> None:
        self._left_us = SLICE_US
        self._waiting: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._begun = False  # whether the next turn is asked for

    async def take(self, cost_us: float) -> None:
        """Returns at once where this turn has time left, else in a later one."""
        if not self._begun:
            self._begun = True
            asyncio.get_running_loop().call_soon(self._begin)
        if self._left_us > 0:
            self._left_us -= cost_us
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((cost_us, turn))
        await turn

    def _begin(self) -> None:
        """A turn later: time for those that wait; where none does, the next who comes begins."""
        self._left_us = SLICE_US
        while self._waiting and self._left_us > 0:
            cost_us, turn = self._waiting.popleft()
            if not turn.done():  # its caller may have gone
                turn.set_result(None)
                self._left_us -= cost_us
        self._begun = bool(self._waiting)
        if self._begun:
            asyncio.get_running_loop().call_soon(self._begin)
