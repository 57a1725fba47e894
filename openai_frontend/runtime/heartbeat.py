"""The pace of periodic checks: one timer for the process, slow while nothing runs."""

import asyncio
from collections.abc import Callable

BUSY_S = 0.25
IDLE_S = 2.0  # the longest that a check of an idle process waits


class Heartbeat:
    """Beats every `busy_s` seconds while requests or changes of models run, and every `idle_s`
    seconds otherwise. Used on one event loop.

    An idle process spends its CPU time on wake-ups: 0.1 to 0.2 ms each, because caches are cold.
    """

    def __init__(self, *, busy_s: float = BUSY_S, idle_s: float = IDLE_S) -> None:
        self.is_busy = False
        self.work: list[Callable[[], bool]] = []  # each says whether something runs
        # Called when a beat begins, with its delay in seconds
        self.on_beat: list[Callable[[float], None]] = []
        self.on_wake: list[Callable[[], None]] = []  # called when the pace becomes `busy_s`
        self._busy_s = busy_s
        self._idle_s = idle_s
        self._begun = self._begun_before = 0
        self._busy_until_s = float("-inf")
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None  # None: nothing sleeps
        self._sleepers: dict[asyncio.Future[None], float] = {}  # and when each is due

    @property
    def every_s(self) -> float:
        """Seconds between beats."""
        return self._busy_s if self.is_busy else self._idle_s

    @property
    def idle_extra_s(self) -> float:
        """By how many seconds beats are further apart than while something runs."""
        return self.every_s - self._busy_s

    def begin(self) -> None:
        """Count a request. The pace stays `busy_s` until a beat finds no new one and no work."""
        self._begun += 1
        if not self.is_busy:
            self._wake()

    def stay_busy(self, seconds: float) -> None:
        """Beat every `busy_s` for so long, at least."""
        self._busy_until_s = max(self._busy_until_s, asyncio.get_running_loop().time() + seconds)
        if not self.is_busy:
            self._wake()

    async def next(self, every_s: float = 0.0) -> None:
        """Sleep until a beat that is `every_s` seconds away, or a little less; 0: the next one."""
        loop = asyncio.get_running_loop()
        beat = loop.create_future()
        self._sleepers[beat] = loop.time() + every_s - self._busy_s / 2
        if self._timer is None:
            self._schedule(loop)
        try:
            await beat
        finally:
            self._sleepers.pop(beat, None)
            if not self._sleepers:
                self._cancel()

    def _wake(self) -> None:
        self.is_busy = True
        if self._timer is not None:
            self._cancel()
            self._schedule(asyncio.get_running_loop())
        for call in self.on_wake:
            call()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = loop.time() + self.every_s
        self._timer = loop.call_at(self._due_s, self._beat, loop)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        self._timer = None
        late_s = max(0.0, now_s - self._due_s)
        try:
            self.is_busy = self._has_work(now_s)
            for observe in self.on_beat:
                observe(late_s)
            for beat, due_s in [*self._sleepers.items()]:
                if due_s <= now_s:
                    del self._sleepers[beat]
                    if not beat.done():
                        beat.set_result(None)
        finally:  # a failure, which the loop logs, must not end all checks
            if self._sleepers:
                self._schedule(loop)

    def _has_work(self, now_s: float) -> bool:
        begun_before, self._begun_before = self._begun_before, self._begun
        if self._begun != begun_before or now_s < self._busy_until_s:
            return True
        return any(has_work() for has_work in self.work)
