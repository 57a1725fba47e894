"""Engine statistics: counted in the EngineCore process, exported under vLLM's metric names."""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from openai_frontend.engines.engine import Sample
from openai_frontend.engines.vllm import kv_transfer, versions
from openai_frontend.generation import Adapter

# vLLM 0.32's bucket bounds (v1/metrics/buckets.py)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip


class Histogram:
    """Counts of observed values per bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # the last bucket has no upper bound
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Observe the value `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def snapshot(self) -> dict[str, Any]:
        """The histogram in the form that is sent between processes: `counts` per bucket, and the
        `sum`.
        """
        return {"counts": list(self._counts), "sum": self._sum}


class StepCounts:
    """Histograms of an engine's steps. Costs under 1 us per step for any number of requests."""

    def __init__(self) -> None:
        self._tokens = Histogram(TOKENS)
        self._seconds = Histogram(SECONDS)
        self._last_s: float | None = None

    def add(self, step: Any, now_s: float) -> None:
        """Record a step (vLLM's SchedulerOutput) whose outputs arrived at `now_s`."""
        if not step.total_num_scheduled_tokens:
            return
        self._tokens.add(step.total_num_scheduled_tokens)
        # per request that was already running, so far
        output_counts = step.scheduled_cached_reqs.num_output_tokens
        continued = len(output_counts) - output_counts.count(0)
        if continued and self._last_s is not None:
            self._seconds.add(now_s - self._last_s, continued)
        self._last_s = now_s

    def snapshot(self) -> dict[str, Any]:
        """`tokens` per step, and `seconds` between two steps, counted once per request that got a
        further token in the second.
        """
        return {"tokens": self._tokens.snapshot(), "seconds": self._seconds.snapshot()}


EVERY_S = 0.25
# Keys in `kv_connector_stats`, which is unused if statistics are off
PREEMPTIONS = "preemptions"  # total
STEPS = "steps"  # see `StepCounts.snapshot`
ADAPTERS = "adapters"  # of running and of waiting requests; None: no LoRA
TRANSFERS = "transfers"  # see `TransferCounts.snapshot`; None: none yet


class StatsMixin:
    """Reports the scheduler's load four times a second, and when the last request has finished.

    Put it before a vLLM scheduler whose statistics are off: vLLM's own come with every step and
    cost time in each. Runs in the EngineCore process.
    """

    _due_s = 0.0
    _preemptions = 0
    _busy = True  # since the last report
    _reported_usage = 0.0
    _transfers: kv_transfer.TransferCounts | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps = StepCounts()

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """vLLM's hook after a step."""
        self._steps.add(scheduler_output, time.monotonic())
        if scheduler_output.total_num_scheduled_tokens:
            self._busy = True
        return super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]

    def _preempt_request(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's hook when a request gives up its KV cache and restarts later."""
        self._preemptions += 1
        return super()._preempt_request(*args, **kwargs)  # type: ignore[misc]

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's hook for the statistics sent with a step's outputs; None most of the time."""
        latest = super().make_stats(*args, **kwargs)  # type: ignore[misc]
        running, waiting = self.get_request_counts()  # type: ignore[attr-defined]
        transferred = kwargs.get("kv_connector_stats") or (args[1] if len(args) > 1 else None)
        if transferred is not None:
            self._transfers = self._transfers or kv_transfer.TransferCounts()
            self._transfers.add(transferred)
        # A prompt that another engine has not read yet keeps the engine stepping without requests.
        self._busy = self._busy or bool(running)
        has_ended = (self._busy and not running) or self._blocks_freed()
        if latest is not None or (not has_ended and time.monotonic() < self._due_s):
            return latest
        self._busy = bool(running)
        usage = self._reported_usage = self.kv_cache_manager.usage  # type: ignore[attr-defined]
        from vllm.v1.metrics.stats import SchedulerStats

        self._due_s = time.monotonic() + EVERY_S
        deferred = len(versions.deferred_requests(self))
        return SchedulerStats(
            num_running_reqs=running,
            num_waiting_reqs=waiting - deferred,
            num_skipped_waiting_reqs=deferred,
            kv_cache_usage=usage,
            kv_connector_stats={
                PREEMPTIONS: self._preemptions,
                STEPS: self._steps.snapshot(),
                ADAPTERS: self._adapters(),
                TRANSFERS: None if self._transfers is None else self._transfers.snapshot(),
            },
        )

    def _blocks_freed(self) -> bool:
        """Whether the last prompt that waited for another engine has gone: no step may follow."""
        return self._reported_usage > 0 and self.kv_cache_manager.usage == 0  # type: ignore[attr-defined]

    def _adapters(self) -> list[list[str]] | None:
        if self.lora_config is None:  # type: ignore[attr-defined]
            return None
        queues = (self.running, self.waiting)  # type: ignore[attr-defined]
        return [_adapters_of(each) for each in queues]


def _adapters_of(requests: Iterable[Any]) -> list[str]:
    named = {each.lora_request.lora_name for each in requests if each.lora_request}
    return sorted(named)


_CACHE_LABELS = (
    "block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization",
    "num_gpu_blocks",
)  # fmt: skip


def engine_samples(config: Any, latest: Any, *, model: str, at_work: bool) -> Iterator[Sample]:
    """Samples for `/metrics`.

    `config` is vLLM's, `latest` the latest SchedulerStats (None before the first). Without requests
    (`at_work` false) the engine reports nothing new.
    """
    cache = {name: str(getattr(config.cache_config, name, None)) for name in _CACHE_LABELS}
    yield "vllm:cache_config_info", cache, 1
    yield from _waiting(latest if at_work else None)
    more: Mapping[str, Any] = (latest and latest.kv_connector_stats) or {}
    if config.lora_config is not None:
        yield _adapters(config.lora_config, model, more.get(ADAPTERS) if at_work else None)
    if config.kv_transfer_config is not None:
        yield from kv_transfer.samples(more.get(TRANSFERS) or {})
    if (steps := more.get(STEPS)) is not None:
        yield from histogram_samples("vllm:iteration_tokens_total", TOKENS, steps["tokens"])
        if config.parallel_config.pipeline_parallel_size == 1:  # otherwise steps overlap
            yield from histogram_samples(
                "vllm:inter_token_latency_seconds", SECONDS, steps["seconds"]
            )


def _waiting(latest: Any) -> Iterator[Sample]:
    reasons = {
        "capacity": 0 if latest is None else latest.num_waiting_reqs,
        "deferred": 0 if latest is None else latest.num_skipped_waiting_reqs,
    }
    for reason, count in reasons.items():
        yield "vllm:num_requests_waiting_by_reason", {"reason": reason}, count


def _adapters(config: Any, model: str, latest: Sequence[Sequence[str]] | None) -> Sample:
    """Adapters by the names that requests use: routers send requests for an adapter to a server
    that has it.
    """
    running, waiting = (
        ",".join(sorted({f"{model}:{lora_adapter_name(each)}" for each in names}))
        for names in latest or ((), ())
    )
    labels = {
        "max_lora": str(config.max_loras),
        "running_lora_adapters": running,
        "waiting_lora_adapters": waiting,
    }
    return "vllm:lora_requests_info", labels, time.time()  # as vLLM: when it was observed


def lora_request_name(adapter: Adapter) -> str:
    """The adapter's name in vLLM. Its id makes it unique per content: vLLM's prefix cache
    distinguishes adapters by name and path.
    """
    return f"{adapter.name}-{adapter.id}"


def lora_adapter_name(request_name: str) -> str:
    """The inverse of `lora_request_name`."""
    return request_name.rpartition("-")[0]


def histogram_samples(
    name: str,
    bounds: Sequence[float],
    latest: Mapping[str, Any],
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Sample]:
    """Samples for `/metrics` of `Histogram.snapshot`."""
    counts = list(accumulate(latest["counts"]))
    for bound, count in zip((*map(float, bounds), "+Inf"), counts, strict=True):
        yield f"{name}_bucket", {**labels, "le": str(bound)}, count
    yield f"{name}_count", labels, counts[-1]
    yield f"{name}_sum", labels, latest["sum"]
