"""Holds what a request has taken, such as its share of its key's limits, until Triton has released
its work.
"""

from collections.abc import Callable


class DeferredRelease:
    """Counts the cancelled parts of the request that have not ended yet."""

    __slots__ = ("_unreleased", "_waiting", "counts_inputs")

    def __init__(self) -> None:
        self.counts_inputs = False  # what waits for the release counts the parts' inputs
        self._unreleased = 0
        self._waiting: list[Callable[[], None]] = []

    def retain(self) -> None:
        """Count a cancelled part, which the model may still be computing."""
        self._unreleased += 1

    def release(self) -> None:
        """Triton has released a part, or will never report it."""
        self._unreleased -= 1
        if not self._unreleased:
            waiting, self._waiting = self._waiting, []
            for give_back in waiting:
                give_back()

    def when_released(self, give_back: Callable[[], None]) -> None:
        """Call `give_back` when no cancelled part is left, or now if there is none."""
        if self._unreleased:
            self._waiting.append(give_back)
        else:
            give_back()
