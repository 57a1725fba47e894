"""What the operator says of one model's places."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConcurrencyLimits:
    """None: as the server has it for every model."""

    max_concurrent_requests: int | None = None  # requests at work in it at a time
    max_queue_size: int | None = None  # requests that wait for a place
    queue_timeout_s: float | None = None  # how long each of them may


NO_LIMITS = ConcurrencyLimits()
