"""Engine statistics: counted in the EngineCore process, exported under vLLM's metric names."""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from openai_frontend.engines.engine import Sample

# vLLM 0.32's own bounds (v1/metrics/buckets.py)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip


class Histogram:
    """What was seen so far."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # the last is of what is above all bounds
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """The value was seen so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def told(self) -> dict[str, Any]:
        """As messages between processes have it: `counts` between the bounds, and their `sum`."""
        return {"counts": list(self._counts), "sum": self._sum}


class StepCounts:
    """Costs under 1 us for a step, whatever the number of its requests."""

    def __init__(self) -> None:
        self._tokens = Histogram(TOKENS)
        self._seconds = Histogram(SECONDS)
        self._last_s: float | None = None

    def add(self, step: Any, now_s: float) -> None:
        """`step`: vLLM's SchedulerOutput, whose outputs have come now."""
        if not step.total_num_scheduled_tokens:
            return
        self._tokens.add(step.total_num_scheduled_tokens)
        said = step.scheduled_cached_reqs.num_output_tokens  # so far, of each that ran before
        going_on = len(said) - said.count(0)
        if going_on and self._last_s is not None:
            self._seconds.add(now_s - self._last_s, going_on)
        self._last_s = now_s

    def told(self) -> dict[str, Any]:
        """Both histograms: `tokens` of a step, `seconds` between two, once for each request that
        got a further token by the second.
        """
        return {"tokens": self._tokens.told(), "seconds": self._seconds.told()}


EVERY_S = 0.25
# In `kv_connector_stats`, which is free where statistics are off
PREEMPTIONS = "preemptions"  # so far
STEPS = "steps"  # see `StepCounts.told`
ADAPTERS = "adapters"  # those of running requests, and of waiting ones; None: it takes none


class StatsMixin:
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


_OF_THE_CACHE = (
    "block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization",
    "num_gpu_blocks",
)  # fmt: skip


def engine_samples(config: Any, told: Any, *, at_work: bool) -> Iterator[Sample]:
    """`config`: vLLM's; `told`: the last SchedulerStats, None before the first; `at_work`: whether
    the engine has requests, without which it tells nothing new.
    """
    cache = {name: str(getattr(config.cache_config, name, None)) for name in _OF_THE_CACHE}
    yield "vllm:cache_config_info", cache, 1
    yield from _waiting(told if at_work else None)
    more: Mapping[str, Any] = (told and told.kv_connector_stats) or {}
    if config.lora_config is not None:
        yield _adapters(config.lora_config, more.get(ADAPTERS) if at_work else None)
    if (steps := more.get(STEPS)) is not None:
        yield from _histogram("vllm:iteration_tokens_total", TOKENS, steps["tokens"])
        if config.parallel_config.pipeline_parallel_size == 1:  # else steps overlap
            yield from _histogram("vllm:inter_token_latency_seconds", SECONDS, steps["seconds"])


def _waiting(told: Any) -> Iterator[Sample]:
    reasons = {
        "capacity": 0 if told is None else told.num_waiting_reqs,
        "deferred": 0 if told is None else told.num_skipped_waiting_reqs,
    }
    for reason, count in reasons.items():
        yield "vllm:num_requests_waiting_by_reason", {"reason": reason}, count


def _adapters(config: Any, told: Sequence[Sequence[str]] | None) -> Sample:
    running, waiting = told or ((), ())
    labels = {
        "max_lora": str(config.max_loras),
        "running_lora_adapters": ",".join(running),
        "waiting_lora_adapters": ",".join(waiting),
    }
    return "vllm:lora_requests_info", labels, time.time()  # vLLM's value: when it was so


def _histogram(name: str, bounds: Sequence[float], told: Mapping[str, Any]) -> Iterator[Sample]:
    counts = list(accumulate(told["counts"]))
    for bound, count in zip((*map(float, bounds), "+Inf"), counts, strict=True):
        yield f"{name}_bucket", {"le": str(bound)}, count
    yield f"{name}_count", {}, counts[-1]
    yield f"{name}_sum", {}, told["sum"]
