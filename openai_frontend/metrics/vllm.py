"""vLLM's metrics under the names and labels that NVIDIA's vLLM backend gives them, for the models
of our own vLLM engine: what the gateway counts anyway, said in vLLM's words when somebody asks.

Which they are is said in `vllm_catalog.py`. A version's answers with adapters and without are
summed here.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from openai_frontend.metrics import catalog
from openai_frontend.metrics.family import Kind, MetricSpec
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

# What a family's samples are called after its name
_SUFFIXES: Mapping[Kind, tuple[str, ...]] = {
    "gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMModel:
    """One version of a model, and how its engine is doing at this moment."""

    model: str  # in Triton
    version: str
    gauges: Mapping[str, float] = field(default_factory=dict)  # vLLM's name -> value
    # What has labels besides: the sample's name, those labels, the value
    samples: Sequence[tuple[str, Mapping[str, str], float]] = ()


def vllm_gauges(told: Mapping[str, float]) -> dict[str, float]:
    """What an engine tells of itself, under vLLM's names."""
    names = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}
    return {names.get(name, name): value for name, value in told.items()}


def families(own: CollectorRegistry, models: Iterable[VLLMModel]) -> Iterator[Metric]:
    """vLLM's families of these models; none where there is no such model."""
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


def _counter(family: MetricSpec, values: Mapping[Labels, float]) -> Metric:
    metric = _metric(family)
    for labels, value in sorted(values.items()):
        metric.add_sample(f"{family.name}_total", dict(labels), value)
    return metric


def _from_engine(family: MetricSpec, models: Iterable[VLLMModel]) -> Metric:
    metric = _metric(family)
    sample = f"{family.name}_total" if family.kind == "counter" else family.name
    names = {f"{family.name}{suffix}" for suffix in _SUFFIXES[family.kind]}
    for each in models:
        if family.name in each.gauges:
            metric.add_sample(sample, dict(_labels(each)), each.gauges[family.name])
        for name, labels, value in each.samples:
            if name in names:
                metric.add_sample(name, {**dict(_labels(each)), **labels}, value)
    return metric


def _metric(family: MetricSpec) -> Metric:
    return Metric(family.name, family.help, family.kind)


def _labels(model: VLLMModel) -> Labels:
    return (("model", model.model), ("version", model.version))


def _samples(own: CollectorRegistry, known: Container[Labels]) -> dict[str, dict[Labels, float]]:
    """Our sample's name -> vLLM's labels -> the sum over all adapters of the model."""
    sums: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
    for sample, of in _of_models(own, known):
        bound = [("le", sample.labels["le"])] if "le" in sample.labels else []
        sums[sample.name][(*of, *bound)] += sample.value
    return sums


def _successes(own: CollectorRegistry, known: Container[Labels]) -> Mapping[Labels, float]:
    sums: dict[Labels, float] = defaultdict(float)
    for sample, of in _of_models(own, known):
        if sample.name == f"{catalog.ENDED.name}_total":
            reason = FINISHED_REASONS[sample.labels["finish_reason"]]
            sums[*of, ("finished_reason", reason)] += sample.value
    return sums


def _by_source(samples: Mapping[str, Mapping[Labels, float]]) -> Mapping[Labels, float]:
    """Of each model's prompts: what the prefix cache held, and what was computed."""
    cached = samples[f"{catalog.CACHED_TOKENS.name}_total"]
    sums: dict[Labels, float] = {}
    for labels, tokens in samples[f"{catalog.PROMPT_TOKENS.name}_sum"].items():
        held = cached.get(labels, 0)
        sums[*labels, ("source", "local_compute")] = tokens - held
        sums[*labels, ("source", "local_cache_hit")] = held
    return sums


def _of_models(own: CollectorRegistry, known: Container[Labels]) -> Iterator[tuple[Sample, Labels]]:
    """Our samples of these models' answers, and vLLM's labels of each."""
    for family in own.collect():
        for sample in family.samples:
            of = tuple((name, sample.labels.get(name, "")) for name in ("model", "version"))
            if of in known:
                yield sample, of


def _histogram(
    family: MetricSpec, ours: MetricSpec, samples: Mapping[str, Mapping[Labels, float]]
) -> Metric:
    metric = _metric(family)
    buckets = samples[f"{ours.name}_bucket"]
    for labels, count in samples[f"{ours.name}_count"].items():  # a model's samples together
        for (*of, (_, bound)), value in buckets.items():
            if tuple(of) == labels and _is_told(float(bound), family.bounds):
                metric.add_sample(f"{family.name}_bucket", {**dict(labels), "le": bound}, value)
        metric.add_sample(f"{family.name}_count", dict(labels), count)
        metric.add_sample(f"{family.name}_sum", dict(labels), samples[f"{ours.name}_sum"][labels])
    return metric


def _is_told(bound: float, bounds: tuple[float, ...]) -> bool:
    return not bounds or bound in bounds or bound == float("inf")


def _params_n(samples: Mapping[str, Mapping[Labels, float]]) -> Metric:
    """Every request that has ended asked the engine for one choice."""
    metric = _metric(PARAMS_N)
    for labels, count in samples[f"{catalog.ANSWER_S.name}_count"].items():
        of = dict(labels)
        for bound in (*map(str, map(float, PARAMS_N.bounds)), "+Inf"):
            metric.add_sample(f"{PARAMS_N.name}_bucket", {**of, "le": bound}, count)
        metric.add_sample(f"{PARAMS_N.name}_count", of, count)
        metric.add_sample(f"{PARAMS_N.name}_sum", of, count)
    return metric
