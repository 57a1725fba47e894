"""vLLM's metrics under the names and labels that NVIDIA's vLLM backend gives them, for the models
of our own vLLM engine: what the gateway counts anyway, said in vLLM's words when somebody asks.

The names are those of NVIDIA's backend (docs of `vllm_backend`, "Triton Metrics") and of vLLM's own
`/metrics` for what that backend leaves out. Several served names of one model (aliases, adapters)
are one model here.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMModel:
    """One version of a model, and how its engine is doing at this moment."""

    model: str  # in Triton
    version: str
    names: frozenset[str]  # under which requests are served by it
    gauges: Mapping[str, float] = field(default_factory=dict)  # vLLM's name -> value


@dataclass(frozen=True, slots=True)
class _Told:
    """A histogram of vLLM's, and the family of ours that holds it."""

    ours: str
    help: str
    bounds: tuple[float, ...] | None = None  # None: all that ours has


_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": _Told(
        "openai_frontend_time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    ),
    "vllm:time_per_output_token_seconds": _Told(
        "openai_frontend_time_per_output_token_seconds",
        "Histogram of time per output token in seconds.",
        (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
    ),
    "vllm:e2e_request_latency_seconds": _Told(
        "openai_frontend_generation_seconds",
        "Histogram of end to end request latency in seconds.",
        (1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    ),
    "vllm:request_prompt_tokens": _Told(
        "openai_frontend_prompt_tokens", "Number of prefill tokens processed."
    ),
    "vllm:request_generation_tokens": _Told(
        "openai_frontend_generation_tokens", "Number of generation tokens processed."
    ),
}

# vLLM's counter -> the sample of ours that holds it
_COUNTERS = {
    "vllm:prompt_tokens": ("openai_frontend_prompt_tokens_sum", "Prefill tokens processed."),
    "vllm:generation_tokens": (
        "openai_frontend_generation_tokens_sum",
        "Generation tokens processed.",
    ),
    "vllm:prefix_cache_queries": (
        "openai_frontend_prompt_tokens_sum",
        "Prefix cache queries, in tokens.",
    ),
    "vllm:prefix_cache_hits": (
        "openai_frontend_cached_prompt_tokens_total",
        "Prefix cache hits, in tokens.",
    ),
}

_GAUGES = {
    "vllm:num_requests_running": "Requests in the engine's batches.",
    "vllm:num_requests_waiting": "Requests that wait to be scheduled.",
    "vllm:kv_cache_usage_perc": "The share of the KV cache that is in use; 1 is all of it.",
}


def vllm_gauges(told: Mapping[str, float]) -> dict[str, float]:
    """What an engine tells of itself, under vLLM's names."""
    names = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}
    return {names.get(name, name): value for name, value in told.items()}


def families(own: CollectorRegistry, models: Iterable[VLLMModel]) -> Iterator[Metric]:
    """vLLM's families of these models; none where there is no such model."""
    listed = list(models)
    by_name = {name: model for model in listed for name in model.names}
    if not listed:
        return
    samples = _samples(own, by_name)
    for name, told in _HISTOGRAMS.items():
        yield _histogram(name, told, samples)
    for name, (ours, help) in _COUNTERS.items():
        family = Metric(name, help, "counter")
        for model, value in sorted(samples[ours].items()):
            family.add_sample(f"{name}_total", dict(model), value)
        yield family
    for name, help in _GAUGES.items():
        family = Metric(name, help, "gauge")
        for each in listed:
            if name in each.gauges:
                family.add_sample(name, dict(_labels(each)), each.gauges[name])
        yield family


def _labels(model: VLLMModel) -> Labels:
    return (("model", model.model), ("version", model.version))


def _samples(
    own: CollectorRegistry, by_name: Mapping[str, VLLMModel]
) -> dict[str, dict[Labels, float]]:
    """Our sample's name -> vLLM's labels -> the sum over all names of the model."""
    sums: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
    for family in own.collect():
        for sample in family.samples:
            name = sample.labels.get("model", "")
            model = by_name.get(name) or by_name.get(name.partition(":")[0])  # an adapter's base
            if model is not None:
                bound = [("le", sample.labels["le"])] if "le" in sample.labels else []
                sums[sample.name][(*_labels(model), *bound)] += sample.value
    return sums


def _histogram(name: str, told: _Told, samples: Mapping[str, Mapping[Labels, float]]) -> Metric:
    family = Metric(name, told.help, "histogram")
    buckets = samples[f"{told.ours}_bucket"]
    for labels, count in samples[f"{told.ours}_count"].items():  # a model's samples together
        for (*of, (_, bound)), value in buckets.items():
            if tuple(of) == labels and _is_told(float(bound), told.bounds):
                family.add_sample(f"{name}_bucket", {**dict(labels), "le": bound}, value)
        family.add_sample(f"{name}_count", dict(labels), count)
        family.add_sample(f"{name}_sum", dict(labels), samples[f"{told.ours}_sum"][labels])
    return family


def _is_told(bound: float, bounds: tuple[float, ...] | None) -> bool:
    return bounds is None or bound in bounds or bound == float("inf")
