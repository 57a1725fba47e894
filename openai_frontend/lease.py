"""What a request keeps of its key's limits until Triton has released all that was sent for it."""

from collections.abc import Callable
from contextvars import ContextVar


class Lease:
    """Counts the request's parts that were cancelled and that Triton has not released yet."""

    __slots__ = ("_unreleased", "_waiting")

    def __init__(self) -> None:
        self._unreleased = 0
        self._waiting: list[Callable[[], None]] = []

    def retain(self) -> None:
        """A part was cancelled; the model may go on with it."""
        self._unreleased += 1

    def release(self) -> None:
        """Triton has released it, or nobody expects that any more."""
        self._unreleased -= 1
        if not self._unreleased:
            waiting, self._waiting = self._waiting, []
            for give_back in waiting:
                give_back()

    def when_released(self, give_back: Callable[[], None]) -> None:
        """Call it once Triton has no cancelled part: now, if it has none."""
        if self._unreleased:
            self._waiting.append(give_back)
        else:
            give_back()


# Of the request that the current task serves; None: its caller has no limits
current: ContextVar[Lease | None] = ContextVar("lease", default=None)
