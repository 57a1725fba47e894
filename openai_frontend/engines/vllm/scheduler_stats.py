"""A scheduler that says now and then how full it is. Runs in the EngineCore process.

vLLM's own statistics come with every step and cost time in each; a look at a few numbers four times
a second, and once more when the last request has ended, is enough for those who watch.
"""

import time
from collections.abc import Iterable
from typing import Any

from openai_frontend.engines.vllm.step_counts import StepCounts

EVERY_S = 0.25
# In `kv_connector_stats`, which is free where statistics are off
PREEMPTIONS = "preemptions"  # so far
STEPS = "steps"  # see `StepCounts.told`
ADAPTERS = "adapters"  # those of running requests, and of waiting ones; None: it takes none


class SaysHowFull:
    """Put before a scheduler of vLLM's whose statistics are off."""

    _due_s = 0.0
    _preemptions = 0  # so far

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See vLLM's."""
        super().__init__(*args, **kwargs)
        self._steps = StepCounts()

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """See vLLM's: a step has been made."""
        self._steps.add(scheduler_output, time.monotonic())
        return super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]

    def _preempt_request(self, *args: Any, **kwargs: Any) -> Any:
        """See vLLM's: a request gives its place in the KV cache up, and begins again later."""
        self._preemptions += 1
        return super()._preempt_request(*args, **kwargs)  # type: ignore[misc]

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """See vLLM's: what goes with a step's outputs; None with most of them."""
        told = super().make_stats(*args, **kwargs)  # type: ignore[misc]
        running, waiting = self.get_request_counts()  # type: ignore[attr-defined]
        if told is not None or (running and time.monotonic() < self._due_s):
            return told
        from vllm.v1.metrics.stats import SchedulerStats

        self._due_s = time.monotonic() + EVERY_S
        deferred = len(self.deferred_waiting)  # type: ignore[attr-defined]
        return SchedulerStats(
            num_running_reqs=running,
            num_waiting_reqs=waiting - deferred,
            num_skipped_waiting_reqs=deferred,
            kv_cache_usage=self.kv_cache_manager.usage,  # type: ignore[attr-defined]
            kv_connector_stats={
                PREEMPTIONS: self._preemptions,
                STEPS: self._steps.told(),
                ADAPTERS: self._adapters(),
            },
        )

    def _adapters(self) -> list[list[str]] | None:
        if self.lora_config is None:  # type: ignore[attr-defined]
            return None
        queues = (self.running, self.waiting)  # type: ignore[attr-defined]
        return [_adapters_of(each) for each in queues]


def _adapters_of(requests: Iterable[Any]) -> list[str]:
    named = {each.lora_request.lora_name for each in requests if each.lora_request}
    return sorted(named)
