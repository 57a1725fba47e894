"""Reports vLLM's metrics for the models of our own vLLM engine, with the names and labels of
NVIDIA's vLLM backend, from what the gateway counts anyway.

Names, labels and bounds are those of that backend (its README, "Triton Metrics"); those that it
lacks are named as in vLLM 0.32's own `/metrics`. Metrics that would need data from the engine for
each request, such as vLLM's `request_queue_time_seconds`, are left out. Values are sums over all
LoRA adapters of a version.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from openai_frontend.metrics import catalog
from openai_frontend.metrics.catalog import Kind, MetricSpec

_MODEL = ("model", "version")

# vLLM's histogram -> ours. Bounds: those that are reported; empty: all of ours.
HISTOGRAMS = {
    MetricSpec(
        name="vllm:time_to_first_token_seconds", kind="histogram", labels=_MODEL,
        help="Time to first token in seconds.",
        runbook="See `openai_frontend_time_to_first_token_seconds`.",
        bounds=tuple(bound for bound in catalog.TIME_TO_FIRST_TOKEN.bounds if bound <= 10),
    ): catalog.TIME_TO_FIRST_TOKEN,
    MetricSpec(
        name="vllm:time_per_output_token_seconds", kind="histogram", labels=_MODEL,
        help="Time per output token in seconds.",
        runbook="See `openai_frontend_time_per_output_token_seconds`.",
        bounds=(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
    ): catalog.TIME_PER_OUTPUT_TOKEN,
    MetricSpec(
        name="vllm:request_time_per_output_token_seconds", kind="histogram", labels=_MODEL,
        help="Mean time per output token of a request in seconds.",
        runbook="Same values under vLLM's newer name.",
    ): catalog.TIME_PER_OUTPUT_TOKEN,
    MetricSpec(
        name="vllm:e2e_request_latency_seconds", kind="histogram", labels=_MODEL,
        help="End-to-end request latency in seconds.",
        runbook="See `openai_frontend_generation_duration_seconds`.",
        bounds=(1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    ): catalog.GENERATION_DURATION,
    MetricSpec(
        name="vllm:request_prompt_tokens", kind="histogram", labels=_MODEL,
        help="Prompt tokens per request.", runbook="See `openai_frontend_prompt_tokens`.",
    ): catalog.PROMPT_TOKENS,
    MetricSpec(
        name="vllm:request_generation_tokens", kind="histogram", labels=_MODEL,
        help="Generation tokens per request.",
        runbook="See `openai_frontend_generation_tokens`.",
    ): catalog.GENERATION_TOKENS,
}  # fmt: skip

# vLLM's counter -> our sample
COUNTERS = {
    MetricSpec(
        name="vllm:prompt_tokens", kind="counter", labels=_MODEL,
        help="Prompt tokens processed.", runbook="Its rate is the prompt throughput.",
    ): f"{catalog.PROMPT_TOKENS.name}_sum",
    MetricSpec(
        name="vllm:generation_tokens", kind="counter", labels=_MODEL,
        help="Generation tokens processed.", runbook="Its rate is the generation throughput.",
    ): f"{catalog.GENERATION_TOKENS.name}_sum",
    MetricSpec(
        name="vllm:prefix_cache_queries", kind="counter", labels=_MODEL,
        help="Prefix cache queries, in tokens.", runbook="The denominator of the hit rate.",
    ): f"{catalog.PROMPT_TOKENS.name}_sum",
    MetricSpec(
        name="vllm:prefix_cache_hits", kind="counter", labels=_MODEL,
        help="Prefix cache hits, in tokens.", runbook="See `openai_frontend_cached_prompt_tokens`.",
    ): f"{catalog.CACHED_PROMPT_TOKENS.name}_total",
    MetricSpec(
        name="vllm:prompt_tokens_cached", kind="counter", labels=_MODEL,
        help="Cached prompt tokens.", runbook="Same values under vLLM's newer name.",
    ): f"{catalog.CACHED_PROMPT_TOKENS.name}_total",
}  # fmt: skip

SUCCESS = MetricSpec(
    name="vllm:request_success", kind="counter", labels=(*_MODEL, "finished_reason"),
    help="Finished requests, by reason: stop, length, abort, error.",
    runbook="See `openai_frontend_generations`; `abort`: cancelled by the client.",
)  # fmt: skip
# Our finish reason -> vLLM's
FINISHED_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}

BY_SOURCE = MetricSpec(
    name="vllm:prompt_tokens_by_source", kind="counter", labels=(*_MODEL, "source"),
    help="Prompt tokens by source: local_compute, local_cache_hit, external_kv_transfer.",
    runbook="The share of `local_cache_hit` is the prompt work saved by the prefix cache, that of "
    "`external_kv_transfer` the work of prefill servers.",
)  # fmt: skip

# The gateway sends each choice of `n` as a separate request.
PARAMS_N = MetricSpec(
    name="vllm:request_params_n", kind="histogram", labels=_MODEL,
    help="The request parameter n, as the engine receives it.",
    runbook="Always 1: each choice of `n` is a separate request.", bounds=(1, 2, 5, 10, 20),
)  # fmt: skip

# Reported by the engine
FROM_ENGINE = (
    MetricSpec(
        name="openai_frontend_engine_capability", kind="gauge", labels=(*_MODEL, "capability"),
        help="1: the gateway uses this part of the engine. 0: the installed version lacks it.",
        runbook="At 0, `GET /v1/models/{id}` and `check` say what is different and why; see "
        "[compatibility](compatibility.md).",
    ),
    MetricSpec(
        name="vllm:num_requests_running", kind="gauge", labels=_MODEL,
        help="Requests in the engine's batch.",
        runbook="At `max_num_seqs`: the batch is full, further requests wait.",
    ),
    MetricSpec(
        name="vllm:num_requests_waiting", kind="gauge", labels=_MODEL,
        help="Requests waiting to be scheduled.",
        runbook="The KV cache is full or `max_num_seqs` is reached: add machines, or limit the "
        "tokens of each request (`max_output_tokens`).",
    ),
    MetricSpec(
        name="vllm:kv_cache_usage_perc", kind="gauge", labels=_MODEL,
        help="KV cache usage; 1 means full.",
        runbook="Near 1, requests are preempted: lower `max_num_seqs`, or give the engine more "
        "memory.",
    ),
    MetricSpec(
        name="vllm:num_preemptions", kind="counter", labels=_MODEL,
        help="Requests preempted: removed from the KV cache and restarted later.",
        runbook="Preempted work is done twice: lower `max_num_seqs`, or give the engine more "
        "memory.",
    ),
    MetricSpec(
        name="vllm:num_requests_waiting_by_reason", kind="gauge", labels=(*_MODEL, "reason"),
        help="Waiting requests, by reason: capacity, deferred.",
        runbook="`capacity`: see `vllm:num_requests_waiting`. `deferred`: the request waits for a "
        "grammar, for a slot for requests with a grammar, or for a LoRA slot (`max_loras`).",
    ),
    MetricSpec(
        name="vllm:inter_token_latency_seconds", kind="histogram", labels=_MODEL,
        help="Inter-token latency in seconds: the time between engine steps, for each running "
        "request.",
        runbook="Grows with the batch. Far below the latency that clients measure: the gateway or "
        "the network lags.",
        bounds=(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
                20, 40, 80),
    ),
    MetricSpec(
        name="vllm:iteration_tokens_total", kind="histogram", labels=_MODEL,
        help="Tokens per engine step, of prompts and outputs.",
        runbook="Often at `max_num_batched_tokens`: prompts delay output tokens.",
        bounds=(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    ),
    MetricSpec(
        name="vllm:mm_cache_queries", kind="counter", labels=_MODEL,
        help="Images and audio of requests.",
        runbook="Compare with `vllm:mm_cache_hits`.",
    ),
    MetricSpec(
        name="vllm:mm_cache_hits", kind="counter", labels=_MODEL,
        help="Images and audio of requests that were known, so no processor ran for them.",
        runbook="Few, although conversations repeat their images: raise `image_cache_mib` "
        "([images](engines.md#images)), or route conversations to the same machine.",
    ),
    MetricSpec(
        name="openai_frontend_media_stage_seconds", kind="histogram",
        labels=(*_MODEL, "kind", "stage"),
        help="Time of each stage of a new image or new audio in seconds, by kind (image, audio) "
        "and stage: queue (wait for a process), decode (files), preprocess (by the model's "
        "processor).",
        runbook="Long `queue`: all processes are busy; raise `image_processes` or "
        "`audio_processes`, or add CPUs. Long `decode`: clients send larger images than the model "
        "uses.",
        bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20),
    ),
    MetricSpec(
        name="vllm:lora_requests_info", kind="gauge",
        labels=(*_MODEL, "max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        help="LoRA adapters of running and waiting requests; the value is a Unix time in seconds.",
        runbook="Adapters wait while `max_lora` others run: raise `max_loras`, or distribute the "
        "adapters over machines.",
    ),
    MetricSpec(
        name="vllm:nixl_num_failed_transfers", kind="counter", labels=_MODEL,
        help="Failed NIXL transfers of KV caches, including handshakes and notifications.",
        runbook="Decode servers compute these prompts themselves: check the network between the "
        "engines.",
    ),
    MetricSpec(
        name="vllm:nixl_num_failed_notifications", kind="counter", labels=_MODEL,
        help="Failed NIXL notifications.",
        runbook="Included in `vllm:nixl_num_failed_transfers`; the blocks stay until their lease "
        "ends.",
    ),
    MetricSpec(
        name="vllm:nixl_num_kv_expired_reqs", kind="counter", labels=_MODEL,
        help="Prompts of a prefill server that were not read before their lease ended.",
        runbook="Decode servers died, or clients left. Blocks were held until then.",
    ),
    MetricSpec(
        name="vllm:nixl_num_notifications_after_expiry", kind="counter", labels=_MODEL,
        help="Reads of a KV cache that ended after its lease.",
        runbook="Alert on any: the blocks may have been used again, and the answer may be wrong. "
        "Raise `kv_lease_duration`.",
    ),
    MetricSpec(
        name="vllm:nixl_xfer_time_seconds", kind="histogram", labels=_MODEL,
        help="Duration of NIXL transfers in seconds: count and sum.",
        runbook="Its mean adds to the time to first token.",
    ),
    MetricSpec(
        name="vllm:nixl_bytes_transferred", kind="histogram", labels=_MODEL,
        help="Bytes per NIXL transfer: count and sum.",
        runbook="Divided by the time: the throughput between the engines.",
    ),
    MetricSpec(
        name="vllm:cache_config_info", kind="gauge",
        labels=(*_MODEL, "block_size", "cache_dtype", "enable_prefix_caching",
                "gpu_memory_utilization", "num_gpu_blocks"),
        help="Configuration of the KV cache; the value is 1.",
        runbook="`block_size` times `num_gpu_blocks` tokens fit into the cache.",
    ),
)  # fmt: skip

ALL = [*FROM_ENGINE, *HISTOGRAMS, *COUNTERS, SUCCESS, BY_SOURCE, PARAMS_N]


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
    """vLLM's metrics of these models, and their seconds of audio under our own name; nothing if
    there are no models.
    """
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
    for family in (*FROM_ENGINE, catalog.AUDIO_SECONDS):
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
    """Prompt tokens by source: found in the prefix cache, transferred, or computed."""
    cached = samples[f"{catalog.CACHED_PROMPT_TOKENS.name}_total"]
    transferred = samples[f"{catalog.TRANSFERRED_PROMPT_TOKENS.name}_total"]
    sums: dict[Labels, float] = {}
    for labels, tokens in samples[f"{catalog.PROMPT_TOKENS.name}_sum"].items():
        transfers = transferred.get(labels, 0)
        cache_hits = cached.get(labels, 0)
        sums[*labels, ("source", "local_compute")] = tokens - cache_hits - transfers
        sums[*labels, ("source", "local_cache_hit")] = cache_hits
        sums[*labels, ("source", "external_kv_transfer")] = transfers
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
