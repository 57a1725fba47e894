"""Computes rates and quantiles of the time between two scrapes."""

from collections.abc import Iterator
from dataclasses import dataclass

from openai_frontend.cli.top.scrape import PATHS, Scrape, Series

_OWN = "openai_frontend"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStats:
    """None: the gateway does not report it."""

    model: str
    state: str
    running: float | None = None  # generations
    queued: float | None = None  # in the gateway's queue
    engine_waiting: float | None = None  # in the engine's queue
    tokens_per_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p99_s: float | None = None
    queue_p99_s: float | None = None
    kv_cache_usage: float | None = None  # 1: full
    rejected_per_s: float | None = None
    images_per_s: float | None = None
    audio_seconds_per_s: float | None = None  # transcribed
    media_decode_p99_s: float | None = None  # of images and audio files
    media_hit_rate: float | None = None  # of images and audio; 1: all were known


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStats:
    status: str
    requests_per_s: float | None
    requests_in_progress: float | None
    streams_open: float | None
    tokens_per_write: float | None
    loop_lag_p99_s: float | None
    rejected_per_s: float | None
    errors_per_s: float | None  # requests with a status of 500 or more
    models: tuple[ModelStats, ...]
    gateways: tuple["GatewayRow", ...] = ()  # of several; empty for one
    gpu_memory_used_bytes: float | None = None  # of all GPUs, as the total
    gpu_memory_total_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRow:
    """One of several gateways; its figures are None if it does not answer."""

    gateway: str
    state: str
    replica: str | None = None  # its `replica_name`
    requests_per_s: float | None = None
    requests_in_progress: float | None = None
    queued: float | None = None
    streams_open: float | None = None
    tokens_per_s: float | None = None
    rejected_per_s: float | None = None
    loop_lag_p99_s: float | None = None


def compute_row(gateway: str, earlier: Scrape, now: Scrape) -> GatewayRow:
    """The figures of one gateway, see `compute_stats`."""
    between, stats = _Between(earlier, now), compute_stats(earlier, now)
    return GatewayRow(
        gateway=gateway,
        state=stats.status,
        replica=next(iter(now.label_values(f"{_OWN}_replica_info", "replica")), None),
        requests_per_s=stats.requests_per_s,
        requests_in_progress=stats.requests_in_progress,
        queued=now.value(f"{_OWN}_requests_waiting"),
        streams_open=stats.streams_open,
        tokens_per_s=between.rate(f"{_OWN}_output_tokens_total"),
        rejected_per_s=stats.rejected_per_s,
        loop_lag_p99_s=stats.loop_lag_p99_s,
    )


def compute_stats(earlier: Scrape, now: Scrape) -> GatewayStats:
    """Gauges are those of `now`; rates and quantiles cover the time between the scrapes."""
    between = _Between(earlier, now)
    texts = between.increase(f"{_OWN}_fast_path_tokens_total")
    writes = between.increase(f"{_OWN}_fast_path_writes_total")
    return GatewayStats(
        status=now.status,
        requests_per_s=between.requests_per_s(),
        requests_in_progress=now.value(f"{_OWN}_requests_in_progress"),
        streams_open=now.value(f"{_OWN}_streams_open"),
        tokens_per_write=texts / writes if texts and writes else None,
        loop_lag_p99_s=between.quantile(0.99, f"{_OWN}_event_loop_lag_seconds"),
        rejected_per_s=between.rate(f"{_OWN}_requests_rejected_total") or 0.0,
        errors_per_s=between.errors_per_s(),
        models=tuple(_model(name, between) for name in sorted(_names(now))),
        gpu_memory_used_bytes=now.value("nv_gpu_memory_used_bytes"),
        gpu_memory_total_bytes=now.value("nv_gpu_memory_total_bytes"),
    )


def _names(now: Scrape) -> set[str]:
    """Served models, models with requests, and engines that are part of an ensemble."""
    engines = now.label_values("vllm:num_requests_running", "model")
    engines |= now.label_values("nv_trt_llm_request_metrics", "model")
    used = now.label_values(f"{_OWN}_requests_running", "model")
    return {*now.models, *now.unready, *used, *engines}


def _model(name: str, between: "_Between") -> ModelStats:
    now, ttft = between.now, f"{_OWN}_time_to_first_token_seconds"
    tpot = f"{_OWN}_time_per_output_token_seconds"
    media = between.increase("vllm:mm_cache_queries_total", model=name)
    hits = between.increase("vllm:mm_cache_hits_total", model=name)
    return ModelStats(
        model=name,
        state=_state(name, now),
        running=now.value(f"{_OWN}_requests_running", model=name),
        queued=now.value(f"{_OWN}_requests_waiting", model=name),
        engine_waiting=_first(
            now.value("vllm:num_requests_waiting", model=name),
            now.value("nv_trt_llm_request_metrics", model=name, request_type="waiting"),
        ),
        tokens_per_s=between.rate(f"{_OWN}_output_tokens_total", model=name),
        ttft_p50_s=between.quantile(0.5, ttft, model=name),
        ttft_p99_s=between.quantile(0.99, ttft, model=name),
        tpot_p50_s=between.quantile(0.5, tpot, model=name),
        tpot_p99_s=between.quantile(0.99, tpot, model=name),
        queue_p99_s=between.quantile(0.99, f"{_OWN}_queue_wait_seconds", model=name),
        kv_cache_usage=_first(
            now.mean("vllm:kv_cache_usage_perc", model=name),
            now.mean(
                "nv_trt_llm_kv_cache_block_metrics", model=name, kv_cache_block_type="fraction"
            ),
        ),
        rejected_per_s=between.rate(f"{_OWN}_requests_rejected_total", model=name) or 0.0,
        images_per_s=between.rate(f"{_OWN}_images_total", model=name),
        audio_seconds_per_s=between.rate(
            f"{_OWN}_audio_seconds_total", model=name, direction="input"
        ),
        media_decode_p99_s=_first(
            between.quantile(
                0.99, f"{_OWN}_media_stage_seconds", model=name, kind="image", stage="decode"
            ),
            between.quantile(0.99, f"{_OWN}_audio_decoding_seconds", model=name),
        ),
        media_hit_rate=hits / media if media and hits is not None else None,
    )


def _state(name: str, now: Scrape) -> str:
    if name in now.unready:
        return now.unready[name]
    if now.models and name not in now.models:
        return ""  # part of an ensemble, or unloaded
    return now.status


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


@dataclass(frozen=True, slots=True)
class _Between:
    """Differences of counters. A counter that fell was reset to zero in between: each by itself,
    because one of several gateways may have been restarted.
    """

    earlier: Scrape
    now: Scrape

    def increase(self, name: str, **labels: str) -> float | None:
        now, before = self._of(name, labels), self.earlier.samples.get(name, {})
        if not now:
            return None
        grown = ((value, before.get(of, 0.0)) for of, value in now.items())
        return sum(value - start if value >= start else value for value, start in grown)

    def rate(self, name: str, **labels: str) -> float | None:
        """Per second."""
        seconds, increase = self.now.at_s - self.earlier.at_s, self.increase(name, **labels)
        return None if increase is None or seconds <= 0 else increase / seconds

    def requests_per_s(self) -> float | None:
        """Requests per second without those of the scrapes themselves."""
        name = f"{_OWN}_requests_total"
        rates = [self.rate(name), *(self.rate(name, route=path) for path in PATHS)]
        total, *own = (rate or 0.0 for rate in rates)
        return None if rates[0] is None else max(total - sum(own), 0.0)

    def errors_per_s(self) -> float | None:
        name = f"{_OWN}_requests_total"
        failed = [each for each in self.now.label_values(name, "status") if each >= "500"]
        rates = [self.rate(name, status=status) or 0.0 for status in failed]
        return None if self.rate(name) is None else sum(rates)

    def quantile(self, share: float, name: str, **labels: str) -> float | None:
        """Quantile of a histogram, linear within a bucket; None without observations."""
        buckets = sorted(self._buckets(f"{name}_bucket", labels))
        total = buckets[-1][1] if buckets else 0.0
        if total <= 0:
            return None
        rank, below, floor = share * total, 0.0, 0.0
        for bound, count in buckets:
            if count >= rank and count > below:
                if bound == float("inf"):
                    return floor
                return floor + (bound - floor) * (rank - below) / (count - below)
            below, floor = count, bound
        return floor

    def _buckets(self, name: str, labels: dict[str, str]) -> Iterator[tuple[float, float]]:
        """Upper bound, and the number of observations at or below it."""
        bounds = {dict(of)["le"] for of in self._of(name, labels)}
        for bound in bounds:
            yield float(bound), self.increase(name, **labels, le=bound) or 0.0

    def _of(self, name: str, labels: dict[str, str]) -> Series:
        required = set(labels.items())
        series = self.now.samples.get(name, {})
        return {of: value for of, value in series.items() if required <= set(of)}
