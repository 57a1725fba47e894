"""What decides whether and in which order requests of a model wait: plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ConcurrencyLimits:
    """A model's own limits; None: the server's default."""

    max_concurrent_requests: int | None = None
    max_queue_size: int | None = None
    queue_timeout_s: float | None = None


NO_LIMITS = ConcurrencyLimits()


@dataclass(frozen=True, slots=True)
class QueueKey:
    """Requests of one key queue in order; keys of the same priority share by round robin."""

    key: str = ""  # digest of the API key; all requests without a key share one queue
    priority: int = 0  # lower numbers run first


ANONYMOUS = QueueKey()


@dataclass(frozen=True, slots=True)
class TritonQueue:
    """The queue of Triton's dynamic batcher, as a model's config describes it."""

    levels: int = 0  # priority levels, of which 1 runs first; 0: first come, first served
    default_level: int = 0
    takes_timeouts: bool = False  # whether a request can set its own queue timeout

    def level(self, priority: int) -> int:
        """The level for a request's priority: lower numbers run first, 0 is the model's default.
        Returns 0 if there are no levels.
        """
        return max(1, min(self.default_level + priority, self.levels)) if self.levels else 0

    def priority(self, level: int) -> int:
        """The inverse of `level`; Triton replaces a level out of range by the model's default."""
        return level - self.default_level if 1 <= level <= self.levels else 0


NO_QUEUE = TritonQueue()


def triton_queue(config: Mapping[str, Any]) -> TritonQueue:
    """`config`: a model's config as JSON."""
    batching = config.get("dynamic_batching") or {}
    policies = [
        batching.get("default_queue_policy") or {},
        *(batching.get("priority_queue_policy") or {}).values(),
    ]
    return TritonQueue(
        int(batching.get("priority_levels", 0)),
        int(batching.get("default_priority_level", 0)),
        takes_timeouts=any(map(_takes_timeouts, policies)),
    )


def _takes_timeouts(policy: Mapping[str, Any]) -> bool:
    """A request can only shorten the policy's timeout, so the policy must have one."""
    return bool(policy.get("allow_timeout_override")) and bool(
        int(policy.get("default_timeout_microseconds", 0))
    )
