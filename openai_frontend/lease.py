"""Holds a request's share of its key's limits until Triton has released its work."""

from collections.abc import Callable
from contextvars import ContextVar


class Lease:
    """Counts the cancelled parts of the request that have not ended yet."""

    __slots__ = ("_unreleased", "_waiting")

    def __init__(self) -> None:
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


# The lease of the current task's request; None if its key has no limits
current: ContextVar[Lease | None] = ContextVar("lease", default=None)
