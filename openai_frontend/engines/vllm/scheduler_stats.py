"""A scheduler that says now and then how full it is. Runs in the EngineCore process.

vLLM's own statistics come with every step and cost time in each; a look at a few numbers four times
a second is enough for those who watch.
"""

import time
from typing import Any

EVERY_S = 0.25
PREEMPTIONS = "preemptions"  # in `kv_connector_stats`, which is free where statistics are off


class SaysHowFull:
    """Put before a scheduler of vLLM's whose statistics are off."""

    _due_s = 0.0
    _preemptions = 0  # so far

    def _preempt_request(self, *args: Any, **kwargs: Any) -> Any:
        """See vLLM's: a request gives its place in the KV cache up, and begins again later."""
        self._preemptions += 1
        return super()._preempt_request(*args, **kwargs)  # type: ignore[misc]

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """See vLLM's: what goes with a step's outputs; None with most of them."""
        told = super().make_stats(*args, **kwargs)  # type: ignore[misc]
        if told is not None or time.monotonic() < self._due_s:
            return told
        from vllm.v1.metrics.stats import SchedulerStats

        self._due_s = time.monotonic() + EVERY_S
        running, waiting = self.get_request_counts()  # type: ignore[attr-defined]
        return SchedulerStats(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            kv_cache_usage=self.kv_cache_manager.usage,  # type: ignore[attr-defined]
            kv_connector_stats={PREEMPTIONS: self._preemptions},
        )
