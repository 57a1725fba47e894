"""TensorRT-LLM's metrics in Triton's metrics API: families, labels, types.

The names are those of its custom_metrics_reporter.cc (NVIDIA/TensorRT-LLM, triton_backend).
"""

from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

BLOCK_TOKENS = 64

# Family -> (its help text, its own label, that label's values); all of them gauges
GAUGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "nv_trt_llm_request_metrics": (
        "TRT LLM request metrics",
        "request_type",
        ("active", "max", "scheduled", "context", "waiting"),
    ),
    "nv_trt_llm_runtime_memory_metrics": (
        "TRT LLM runtime memory metrics",
        "memory_type",
        ("cpu", "gpu", "pinned"),
    ),
    "nv_trt_llm_kv_cache_block_metrics": (
        "TRT LLM KV cache block metrics",
        "kv_cache_block_type",
        ("max", "free", "used", "tokens_per", "reused", "fraction"),
    ),
    "nv_trt_llm_inflight_batcher_metrics": (
        "TRT LLM inflight_batcher-specific metrics",
        "inflight_batcher_specific_metric",
        ("total_context_tokens", "generation_requests", "micro_batch_id", "paused_requests"),
    ),
    "nv_trt_llm_general_metrics": (
        "General TRT LLM metrics",
        "general_type",
        ("timestamp", "iteration_counter"),
    ),
}
COUNTER = (
    "nv_trt_llm_disaggregated_serving_metrics",
    "TRT LLM disaggregated serving metrics",
    "disaggregated_serving_type",
    ("kv_cache_transfer_ms", "request_count"),
)
# Family -> the value of its label `response_metric_type`
HISTOGRAMS = {
    "nv_llm_output_token_len": "total_output_tokens",
    "nv_llm_input_token_len": "total_input_tokens",
}
BUCKETS = [10.0, 50.0, 100.0, 500.0, 1000.0]


class Reporter:
    """One model's series, each with the labels `model` and `version` in addition to its own."""

    def __init__(self, model: str, version: str) -> None:
        self._labels = {"model": model, "version": version}
        self._families: list[Any] = []  # a metric lives as long as its family
        self._gauges: dict[tuple[str, str], Any] = {}
        kinds = pb_utils.MetricFamily
        for name, (text, label, values) in GAUGES.items():
            family = self._family(name, text, kinds.GAUGE)
            for value in values:
                self._gauges[name, value] = self._metric(family, label, value)
        name, text, label, values = COUNTER
        family = self._family(name, text, kinds.COUNTER)
        for value in values:
            self._families.append(self._metric(family, label, value))
        self._histograms: dict[str, Any] = {}
        for name, value in HISTOGRAMS.items():
            family = self._family(name, "TRT LLM response metrics", kinds.HISTOGRAM)
            self._histograms[name] = self._metric(
                family, "response_metric_type", value, buckets=BUCKETS
            )

    def set(self, family: str, values: Mapping[str, float]) -> None:
        """Sets values by the value of the family's own label."""
        for value, number in values.items():
            self._gauges[family, value].set(number)

    def observe(self, family: str, tokens: float) -> None:
        self._histograms[family].observe(tokens)

    def _family(self, name: str, text: str, kind: Any) -> Any:
        family = pb_utils.MetricFamily(name=name, description=text, kind=kind)
        self._families.append(family)
        return family

    def _metric(self, family: Any, label: str, value: str, **more: Any) -> Any:
        return family.Metric(labels={**self._labels, label: value}, **more)
