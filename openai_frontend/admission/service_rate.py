"""How fast a queue moves, and so how long one would wait in it. The times are its caller's."""

_OF_THE_LAST = 0.1  # what the newest interval counts: the mean of about the last twenty

# OpenAI's clients wait as told up to a minute, and longer waits are as they think best
SHORTEST_S, LONGEST_S = 0.1, 60.0


class ServiceRateEstimator:
    """Seconds from one that leaves the queue for a place to the next, while somebody waits."""

    def __init__(self) -> None:
        self._interval_s: float | None = None  # None until it has moved once
        self._last_s: float | None = None  # when it moved last, or began to wait

    def begin(self, now_s: float) -> None:
        """The queue was empty, and is not any more."""
        self._last_s = now_s

    def moved(self, now_s: float) -> None:
        """One of those who waited got a place."""
        if self._last_s is None:
            self._last_s = now_s
        interval_s, self._last_s = now_s - self._last_s, now_s
        if self._interval_s is None:
            self._interval_s = interval_s
        else:
            self._interval_s += _OF_THE_LAST * (interval_s - self._interval_s)

    def wait_s(self, ahead: int, now_s: float) -> float:
        """Seconds until so many have been served, as far as is known; one that stands still longer
        than it used to is as slow as that.
        """
        since_s = 0.0 if self._last_s is None else now_s - self._last_s
        if self._interval_s is None and since_s <= 0:
            return 1.0
        interval_s = max(self._interval_s or 0.0, since_s)
        return min(max(SHORTEST_S, ahead * interval_s), LONGEST_S)
