"""Logs what blocks the event loop, and with it all streams.

`lifespan.py` measures shorter delays.
"""

import logging
import sys
import threading
import time
import traceback

from openai_frontend.runtime.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

THRESHOLD_S = 1.0
# While models load there are no streams, and importing an engine blocks the interpreter, and thus
# the loop, for a second now and then. A loop that stays blocked must be logged all the same.
STARTUP_THRESHOLD_S = 10.0


class LoopWatchdog:
    """A thread that checks the loop's heartbeat. If it stops, logs the stack of the loop's thread
    once, and a line when the loop resumes.
    """

    def __init__(self, heartbeat: Heartbeat, *, threshold_s: float = THRESHOLD_S) -> None:
        self.threshold_s = threshold_s  # log blocks longer than this; may change
        self._heartbeat = heartbeat
        self._beat_s = 0.0
        self._since_s = 0.0  # from then on, the loop's silence counts as a block
        self._loop_thread = 0
        self._ended = False
        self._pace_changed = threading.Event()  # or `run` ended

    async def run(self) -> None:
        """Runs until it is cancelled."""
        self._loop_thread = threading.get_ident()
        self._note_beat()
        threading.Thread(target=self._watch, name="loop-watchdog", daemon=True).start()
        self._heartbeat.on_wake.append(self._on_wake)
        try:
            while True:
                self._note_beat()
                await self._heartbeat.next()
        finally:
            self._heartbeat.on_wake.remove(self._on_wake)
            self._ended = True
            self._pace_changed.set()

    def _note_beat(self) -> None:
        self._beat_s = time.monotonic()
        self._since_s = self._beat_s + self._heartbeat.idle_extra_s

    def _on_wake(self) -> None:
        self._note_beat()
        self._pace_changed.set()

    def _watch(self) -> None:
        logged_s: float | None = None  # when the block that was logged began
        checked_s, cpu_s = time.monotonic(), time.process_time()
        while not self._ended:
            every_s = self._heartbeat.every_s
            woken = self._pace_changed.wait(every_s)
            self._pace_changed.clear()
            late_s = time.monotonic() - (self._beat_s if woken else checked_s + every_s)
            used_s = time.process_time() - cpu_s
            checked_s, cpu_s = time.monotonic(), time.process_time()
            since_s = self._since_s
            if (
                late_s > self.threshold_s
            ):  # the thread itself was blocked, so the stack would be too late
                _log_stall(late_s, used_s)
            elif logged_s is not None and since_s != logged_s:
                logger.warning("event loop resumed after %.1f s", self._beat_s - logged_s)
                logged_s = None
            elif logged_s is None and checked_s - since_s > self.threshold_s:
                logged_s = since_s
                stack = traceback.format_stack(sys._current_frames()[self._loop_thread])
                blocked_s = checked_s - since_s
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
