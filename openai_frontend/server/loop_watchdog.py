"""Says in the log what holds the event loop up, for all streams wait while it does. Ends nothing.

How late the loop is at other times is counted in `metrics/loop_lag.py`.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback

logger = logging.getLogger(__name__)

PATIENCE_S = 1.0
# While models load nobody's stream waits, and what engines import holds the interpreter, and thus
# the loop, for a second now and then; one that blocks the loop for good is to be seen all the same.
PATIENCE_AT_START_S = 10.0

_EVERY_S = 0.25


class LoopWatchdog:
    """A thread that looks for the loop's beat, and logs the stack of the loop's thread where it
    stays away: once for each halt, and a line when it is over.
    """

    def __init__(self, *, patience_s: float = PATIENCE_S, every_s: float = _EVERY_S) -> None:
        self.patience_s = patience_s  # may change; how long a halt is before it is told of
        self._every_s = every_s
        self._beat_s = 0.0
        self._loop_thread = 0
        self._ended = threading.Event()

    async def run(self) -> None:
        """Beats until it is cancelled."""
        self._beat_s, self._loop_thread = time.monotonic(), threading.get_ident()
        threading.Thread(target=self._watch, name="loop-watchdog", daemon=True).start()
        try:
            while True:
                self._beat_s = time.monotonic()
                await asyncio.sleep(self._every_s)
        finally:
            self._ended.set()

    def _watch(self) -> None:
        told_s: float | None = None  # the beat before the halt that was told of
        looked_s, cpu_s = time.monotonic(), time.process_time()
        while not self._ended.wait(self._every_s):
            late_s = time.monotonic() - looked_s - self._every_s
            used_s = time.process_time() - cpu_s
            looked_s, cpu_s = time.monotonic(), time.process_time()
            beat_s = self._beat_s
            if late_s > self.patience_s:  # then the stack is not that of the halt
                _tell_of_a_standstill(late_s, used_s)
            elif told_s is not None and beat_s != told_s:
                logger.warning("the event loop goes on after %.1f s", beat_s - told_s)
                told_s = None
            elif told_s is None and looked_s - beat_s > self.patience_s:
                told_s = beat_s
                stack = traceback.format_stack(sys._current_frames()[self._loop_thread])
                halt_s = looked_s - beat_s
                logger.warning("the event loop is blocked for %.1f s:\n%s", halt_s, "".join(stack))


def _tell_of_a_standstill(late_s: float, used_s: float) -> None:
    """Not of a process that was stopped, or got no CPU to speak of: that is nothing of ours."""
    if used_s > late_s / 10:
        logger.warning(
            "no thread ran for %.1f s (%.1f s of CPU): a call held Python's interpreter, or others "
            "held the CPU",
            late_s,
            used_s,
        )
