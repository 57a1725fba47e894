"""The engine's metrics, derived from its scheduler's statistics."""

from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.engines.vllm.stats import ADAPTERS, STEPS, StepCounts, engine_samples
from openai_frontend.metrics.vllm import FROM_ENGINE


def config(*, lora: bool = True, pipeline: int = 1) -> Any:
    cache = {"block_size": 16, "cache_dtype": "auto", "enable_prefix_caching": True}
    return SimpleNamespace(
        cache_config=SimpleNamespace(**cache, gpu_memory_utilization=0.9, num_gpu_blocks=512),
        lora_config=SimpleNamespace(max_loras=2) if lora else None,
        parallel_config=SimpleNamespace(pipeline_parallel_size=pipeline),
        kv_transfer_config=None,
    )


def stats() -> Any:
    steps = StepCounts()
    old = SimpleNamespace(num_output_tokens=[1, 2])
    step = SimpleNamespace(total_num_scheduled_tokens=2, scheduled_cached_reqs=old)
    for now_s in (1.0, 1.02):
        steps.add(step, now_s)
    more = {STEPS: steps.snapshot(), ADAPTERS: [["a-1", "a-2", "b-c-3"], ["c-4"]]}
    return SimpleNamespace(num_waiting_reqs=3, num_skipped_waiting_reqs=1, kv_connector_stats=more)


def samples(**of: Any) -> dict[Any, float]:
    """Return the values by metric name and label values."""
    given = {"config": config(), "latest": stats(), "model": "m", "at_work": True, **of}
    return {(name, *labels.values()): value for name, labels, value in engine_samples(**given)}


def test_metrics_of_a_busy_engine() -> None:
    """Waiting requests by reason, the adapters by the names that requests use, and the steps as
    cumulative histograms.
    """
    found = samples()

    assert found["vllm:num_requests_waiting_by_reason", "capacity"] == 3
    assert found["vllm:num_requests_waiting_by_reason", "deferred"] == 1
    assert ("vllm:lora_requests_info", "2", "m:a,m:b-c", "m:c") in found
    assert found["vllm:cache_config_info", "16", "auto", "True", "0.9", "512"] == 1
    of_tokens = [found["vllm:iteration_tokens_total_bucket", le] for le in ("1.0", "8.0", "+Inf")]
    assert of_tokens == [0, 2, 2]
    of_time = [
        found["vllm:inter_token_latency_seconds_bucket", le] for le in ("0.01", "0.025", "+Inf")
    ]
    assert of_time == [0, 2, 2]
    assert found["vllm:inter_token_latency_seconds_count",] == 2
    assert found["vllm:inter_token_latency_seconds_sum",] == pytest.approx(0.04)


def test_metrics_of_an_idle_engine() -> None:
    """No request waits and no adapter runs, whatever the last report was; counters keep their
    value.
    """
    found = samples(at_work=False)

    assert found["vllm:num_requests_waiting_by_reason", "capacity"] == 0
    assert ("vllm:lora_requests_info", "2", "", "") in found
    assert found["vllm:iteration_tokens_total_count",] == 2


def test_metrics_before_the_first_step() -> None:
    """Only metrics that are known from the start have samples."""
    names = {name for name, *_ in samples(latest=None, at_work=False, config=config(lora=False))}

    assert names == {"vllm:cache_config_info", "vllm:num_requests_waiting_by_reason"}


def test_pipeline_has_no_inter_token_latency() -> None:
    """With overlapping steps, the time between steps is not the time between a request's tokens."""
    names = {name for name, *_ in samples(config=config(pipeline=2))}

    assert "vllm:inter_token_latency_seconds_count" not in names
    assert "vllm:iteration_tokens_total_count" in names


def test_samples_match_the_declared_families() -> None:
    """Their labels and histogram bounds are declared."""
    declared = {each.name: each for each in FROM_ENGINE}
    for name, labels, _ in engine_samples(config(), stats(), model="m", at_work=True):
        family = declared[name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")]
        bound = labels.get("le")
        assert {*labels} - {"le"} <= {*family.labels}
        assert bound in (None, "+Inf") or float(bound) in family.bounds
