"""Reports vLLM's metrics for the models of our own vLLM engine, with the names and labels of
NVIDIA's vLLM backend, from what the gateway counts anyway.

`vllm_catalog.py` lists them. Values are sums over all LoRA adapters of a version.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from openai_frontend.metrics import catalog
from openai_frontend.metrics.catalog import Kind, MetricSpec
from openai_frontend.metrics.vllm_catalog import (
    BY_SOURCE,
    COUNTERS,
    FINISHED_REASONS,
    FROM_ENGINE,
    HISTOGRAMS,
    PARAMS_N,
    SUCCESS,
)

Labels = tuple[tuple[str, str], ...]

# The suffixes of a metric's samples
_SUFFIXES: Mapping[Kind, tuple[str, ...]] = {
    "gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMModel:
    """One version of a model, with the current state of its engine."""

    model: str  # name in Triton
    version: str
    gauges: Mapping[str, float] = field(default_factory=dict)  # vLLM's name -> value
    # Sample's name, labels besides the model's, value
    samples: Sequence[tuple[str, Mapping[str, str], float]] = ()


def vllm_gauges(gauges: Mapping[str, float]) -> dict[str, float]:
    """An engine's gauges under vLLM's names."""
    names = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}
    return {names.get(name, name): value for name, value in gauges.items()}


def families(own: CollectorRegistry, models: Iterable[VLLMModel]) -> Iterator[Metric]:
    """vLLM's metrics of these models; nothing without models."""
    listed = list(models)
    if not listed:
        return
    known = frozenset(map(_labels, listed))
    samples = _samples(own, known)
    for family, ours in HISTOGRAMS.items():
        yield _histogram(family, ours, samples)
    yield _params_n(samples)
    for family, sample in COUNTERS.items():
        yield _counter(family, samples[sample])
    yield _counter(SUCCESS, _successes(own, known))
    yield _counter(BY_SOURCE, _by_source(samples))
    for family in FROM_ENGINE:
        yield _from_engine(family, listed)


def _counter(spec: MetricSpec, values: Mapping[Labels, float]) -> Metric:
    metric = _metric(spec)
    for labels, value in sorted(values.items()):
        metric.add_sample(f"{spec.name}_total", dict(labels), value)
    return metric


def _from_engine(spec: MetricSpec, models: Iterable[VLLMModel]) -> Metric:
    metric = _metric(spec)
    sample = f"{spec.name}_total" if spec.kind == "counter" else spec.name
    names = {f"{spec.name}{suffix}" for suffix in _SUFFIXES[spec.kind]}
    for each in models:
        if spec.name in each.gauges:
            metric.add_sample(sample, dict(_labels(each)), each.gauges[spec.name])
        for name, labels, value in each.samples:
            if name in names:
                metric.add_sample(name, {**dict(_labels(each)), **labels}, value)
    return metric


def _metric(spec: MetricSpec) -> Metric:
    return Metric(spec.name, spec.help, spec.kind)


def _labels(model: VLLMModel) -> Labels:
    return (("model", model.model), ("version", model.version))


def _samples(own: CollectorRegistry, known: Container[Labels]) -> dict[str, dict[Labels, float]]:
    """Our sample's name -> vLLM's labels -> the sum over all LoRA adapters."""
    sums: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
    for sample, of in _of_models(own, known):
        bound = [("le", sample.labels["le"])] if "le" in sample.labels else []
        sums[sample.name][(*of, *bound)] += sample.value
    return sums


def _successes(own: CollectorRegistry, known: Container[Labels]) -> Mapping[Labels, float]:
    sums: dict[Labels, float] = defaultdict(float)
    for sample, of in _of_models(own, known):
        if sample.name == f"{catalog.GENERATIONS.name}_total":
            reason = FINISHED_REASONS[sample.labels["finish_reason"]]
            sums[*of, ("finished_reason", reason)] += sample.value
    return sums


def _by_source(samples: Mapping[str, Mapping[Labels, float]]) -> Mapping[Labels, float]:
    """Prompt tokens by source: found in the prefix cache, or computed."""
    cached = samples[f"{catalog.CACHED_PROMPT_TOKENS.name}_total"]
    sums: dict[Labels, float] = {}
    for labels, tokens in samples[f"{catalog.PROMPT_TOKENS.name}_sum"].items():
        held = cached.get(labels, 0)
        sums[*labels, ("source", "local_compute")] = tokens - held
        sums[*labels, ("source", "local_cache_hit")] = held
    return sums


def _of_models(own: CollectorRegistry, known: Container[Labels]) -> Iterator[tuple[Sample, Labels]]:
    """Our samples of these models, with vLLM's labels of each."""
    for family in own.collect():
        for sample in family.samples:
            of = tuple((name, sample.labels.get(name, "")) for name in ("model", "version"))
            if of in known:
                yield sample, of


def _histogram(
    spec: MetricSpec, ours: MetricSpec, samples: Mapping[str, Mapping[Labels, float]]
) -> Metric:
    metric = _metric(spec)
    buckets = samples[f"{ours.name}_bucket"]
    for labels, count in samples[f"{ours.name}_count"].items():  # all samples of a model
        for (*of, (_, bound)), value in buckets.items():
            if tuple(of) == labels and _is_reported(float(bound), spec.bounds):
                metric.add_sample(f"{spec.name}_bucket", {**dict(labels), "le": bound}, value)
        metric.add_sample(f"{spec.name}_count", dict(labels), count)
        metric.add_sample(f"{spec.name}_sum", dict(labels), samples[f"{ours.name}_sum"][labels])
    return metric


def _is_reported(bound: float, bounds: tuple[float, ...]) -> bool:
    return not bounds or bound in bounds or bound == float("inf")


def _params_n(samples: Mapping[str, Mapping[Labels, float]]) -> Metric:
    """Each request to the engine has one choice."""
    metric = _metric(PARAMS_N)
    for labels, count in samples[f"{catalog.GENERATION_DURATION.name}_count"].items():
        of = dict(labels)
        for bound in (*map(str, map(float, PARAMS_N.bounds)), "+Inf"):
            metric.add_sample(f"{PARAMS_N.name}_bucket", {**of, "le": bound}, count)
        metric.add_sample(f"{PARAMS_N.name}_count", of, count)
        metric.add_sample(f"{PARAMS_N.name}_sum", of, count)
    return metric
