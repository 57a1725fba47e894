"""How often an engine is started again, and how long before each start. Knows no engine."""

from collections import deque

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0


class Restarts:
    """The starts of one model's engine that still count."""

    def __init__(self) -> None:
        self._begun_s: deque[float] = deque()

    def begin(self, now_s: float, *, most: int, window_s: float) -> float | None:
        """One more start: the seconds to wait before it; None where there have been as many.

        The first waits for 1 s, each further one twice as long as the one before, 60 s at most.
        """
        while self._begun_s and self._begun_s[0] <= now_s - window_s:
            self._begun_s.popleft()
        count = len(self._begun_s)
        if count >= most:
            return None
        self._begun_s.append(now_s)
        return float(min(FIRST_DELAY_S * 2 ** min(count, 30), LONGEST_DELAY_S))
