"""Logs what blocks the event loop, and with it all streams.

`lifespan.py` measures shorter delays.
"""

import logging
import sys
import threading
import time
import traceback

from openai_frontend.runtime.background_tasks import next_tick

logger = logging.getLogger(__name__)

THRESHOLD_S = 1.0
# While models load there are no streams, and importing an engine blocks the interpreter, and thus
# the loop, for a second now and then. A loop that stays blocked must be logged all the same.
STARTUP_THRESHOLD_S = 10.0

_INTERVAL_S = 0.25


class LoopWatchdog:
    """A thread that checks the loop's heartbeat. If it stops, logs the stack of the loop's thread
    once, and a line when the loop resumes.
    """

    def __init__(
        self, *, threshold_s: float = THRESHOLD_S, interval_s: float = _INTERVAL_S
    ) -> None:
        self.threshold_s = threshold_s  # log blocks longer than this; may change
        self._interval_s = interval_s
        self._beat_s = 0.0
        self._loop_thread = 0
        self._ended = threading.Event()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        self._beat_s, self._loop_thread = time.monotonic(), threading.get_ident()
        threading.Thread(target=self._watch, name="loop-watchdog", daemon=True).start()
        try:
            while True:
                self._beat_s = time.monotonic()
                await next_tick(self._interval_s)
        finally:
            self._ended.set()

    def _watch(self) -> None:
        logged_s: float | None = None  # the last beat before the block that was logged
        checked_s, cpu_s = time.monotonic(), time.process_time()
        while not self._ended.wait(self._interval_s):
            late_s = time.monotonic() - checked_s - self._interval_s
            used_s = time.process_time() - cpu_s
            checked_s, cpu_s = time.monotonic(), time.process_time()
            beat_s = self._beat_s
            if (
                late_s > self.threshold_s
            ):  # the thread itself was blocked, so the stack would be too late
                _log_stall(late_s, used_s)
            elif logged_s is not None and beat_s != logged_s:
                logger.warning("event loop resumed after %.1f s", beat_s - logged_s)
                logged_s = None
            elif logged_s is None and checked_s - beat_s > self.threshold_s:
                logged_s = beat_s
                stack = traceback.format_stack(sys._current_frames()[self._loop_thread])
                blocked_s = checked_s - beat_s
                logger.warning("event loop blocked for %.1f s:\n%s", blocked_s, "".join(stack))


def _log_stall(late_s: float, used_s: float) -> None:
    """Ignores a process that was stopped, or got hardly any CPU time."""
    if used_s > late_s / 10:
        logger.warning(
            "no thread ran for %.1f s (%.1f s of CPU): a call held Python's interpreter, or others "
            "held the CPU",
            late_s,
            used_s,
        )
