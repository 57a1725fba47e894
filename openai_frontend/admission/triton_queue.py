"""What a model's config says of the queue that Triton keeps in front of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TritonQueue:
    """Where there are levels, 1 is the first that is served. Triton's batcher has them, and a
    model without one takes whatever comes.
    """

    levels: int = 0  # 0: requests are served as they come
    default_level: int = 0
    takes_timeouts: bool = False  # a request may say how long it waits

    def level(self, priority: int) -> int:
        """That of a request: lower numbers first, 0 is the model's own level. 0 where there are
        none.
        """
        return max(1, min(self.default_level + priority, self.levels)) if self.levels else 0

    def priority(self, level: int) -> int:
        """What `level` makes of it; Triton takes a level that is not there for the model's own."""
        return level - self.default_level if 1 <= level <= self.levels else 0


NO_QUEUE = TritonQueue()


def triton_queue(config: Mapping[str, Any]) -> TritonQueue:
    """From a model's config as JSON."""
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
    """A request's own may only be shorter than the policy's, so there has to be one."""
    return bool(policy.get("allow_timeout_override")) and bool(
        int(policy.get("default_timeout_microseconds", 0))
    )
