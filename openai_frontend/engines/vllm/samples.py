"""What an engine of vLLM's tells a scrape of `/metrics`, by the names that vLLM has for it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from openai_frontend.engines.engine import Sample
from openai_frontend.engines.vllm.scheduler_stats import ADAPTERS, STEPS
from openai_frontend.engines.vllm.step_counts import SECONDS, TOKENS

_OF_THE_CACHE = (
    "block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization",
    "num_gpu_blocks",
)  # fmt: skip


def samples(config: Any, told: Any, *, at_work: bool) -> Iterator[Sample]:
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
