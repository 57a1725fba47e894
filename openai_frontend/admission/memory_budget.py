"""Limits the memory that data of one kind takes, for all requests together and for each request."""

from functools import partial

from openai_frontend.admission.deferred_release import DeferredRelease
from openai_frontend.errors import ServerOverloaded


class MemoryBudget:
    """The memory that all requests may hold of one kind of data."""

    def __init__(
        self,
        max_bytes: int,
        *,
        what: str = "request bodies",
        setting: str = "max-buffered-body-bytes",
    ) -> None:
        """`what` and `setting` name the data and the limit in errors."""
        self._max_bytes = max_bytes
        self._full = (
            f"The {what} that the server holds reached their limit of {max_bytes} bytes "
            f"(--{setting}). Retry later."
        )
        self.used_bytes = 0

    def take(self, length: int) -> None:
        """Raises ServerOverloaded if the budget is exhausted."""
        if self.used_bytes + length > self._max_bytes:
            raise ServerOverloaded(self._full)
        self.used_bytes += length

    def give_back(self, length: int) -> None:
        """Once for what was taken."""
        self.used_bytes -= length

    def retain(self, model_name: str, input_bytes: int) -> None:
        """The inputs of a cancelled request stay in memory until Triton releases it."""
        self.used_bytes += input_bytes

    def release(self, model_name: str, input_bytes: int) -> None:
        """Triton has released the request."""
        self.used_bytes -= input_bytes


class RequestMemory:
    """The part of a budget that one request holds. Its owner always calls `release` in the end."""

    def __init__(self, budget: MemoryBudget, deferred: DeferredRelease | None = None) -> None:
        """`deferred`: Triton has the data as inputs, so what is cancelled counts until its
        release.
        """
        self._budget = budget
        self._deferred = deferred
        self.held_bytes = 0

    def take(self, length: int) -> None:
        """Raises ServerOverloaded if the budget is exhausted."""
        self._budget.take(length)
        self.held_bytes += length

    def give_back(self, length: int) -> None:
        """Part of what was taken."""
        self._budget.give_back(length)
        self.held_bytes -= length

    def release(self) -> None:
        """Release the rest. May be called repeatedly."""
        held, self.held_bytes = self.held_bytes, 0
        if self._deferred is None:
            self._budget.give_back(held)
        elif held:
            self._deferred.when_released(partial(self._budget.give_back, held))
