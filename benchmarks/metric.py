"""What can be said of one load, and how it follows from what was measured. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.load import Measured
from benchmarks.summary import percentile


@dataclass(frozen=True, slots=True)
class Metric:
    """One row for each scenario that has it; its figure's name is `<name>_<scenario>`."""

    name: str
    title: str
    unit: str
    digits: int
    of: Callable[[Measured], float]


def delay_s(gap_s: list[float], percent: float) -> float:
    """By how much a gap is longer than the usual one: what held a paced stream's token back."""
    return percentile(gap_s, percent) - percentile(gap_s, 50)


CPU_PER_CHUNK = Metric(
    "cpu_us_per_chunk", "CPU per streamed chunk", "us", 1, lambda load: load.cpu_us_per_chunk
)
CPU_PER_TOKEN = Metric(
    "cpu_us_per_token", "CPU per token", "us", 1, lambda load: load.cpu_us_per_token
)
CPU_PER_REQUEST = Metric(
    "cpu_us_per_request", "CPU per request", "us", 0, lambda load: load.cpu_us_per_response
)
TOKENS_PER_CHUNK = Metric(
    "tokens_per_chunk", "tokens per chunk", "", 2, lambda load: load.tokens_per_chunk
)
CHUNKS_PER_S = Metric("chunks_per_s", "chunks per second", "1/s", 0, lambda load: load.chunks_per_s)
CHUNKS_PER_CORE_S = Metric(
    "chunks_per_core_s",
    "  less the time others held its core",
    "1/s",
    0,
    lambda load: load.chunks_per_core_s,
)
REQUESTS_PER_S = Metric(
    "requests_per_s", "requests per second", "1/s", 0, lambda load: load.responses_per_s
)
TTFT_P50 = Metric(
    "ttft_p50_ms", "TTFT p50", "ms", 2, lambda load: percentile(load.ttft_s, 50) * 1e3
)
TTFT_P99 = Metric(
    "ttft_p99_ms", "TTFT p99", "ms", 2, lambda load: percentile(load.ttft_s, 99) * 1e3
)
LATENCY_P50 = Metric(
    "latency_p50_ms", "whole answer p50", "ms", 2, lambda load: percentile(load.latency_s, 50) * 1e3
)
LATENCY_P99 = Metric(
    "latency_p99_ms", "whole answer p99", "ms", 2, lambda load: percentile(load.latency_s, 99) * 1e3
)
LATE_P99 = Metric(
    "late_p99_ms",
    "  sent later than intended, p99",
    "ms",
    2,
    lambda load: percentile(load.late_s, 99) * 1e3,
)
GAP_P50 = Metric("gap_p50_ms", "gap p50", "ms", 2, lambda load: percentile(load.gap_s, 50) * 1e3)
GAP_P99 = Metric("gap_p99_ms", "gap p99", "ms", 2, lambda load: percentile(load.gap_s, 99) * 1e3)
GAP_P999 = Metric(
    "gap_p999_ms", "gap p99.9", "ms", 2, lambda load: percentile(load.gap_s, 99.9) * 1e3
)
GAP_MAX = Metric("gap_max_ms", "gap, longest", "ms", 2, lambda load: max(load.gap_s) * 1e3)
DELAY_P99 = Metric(
    "delay_p99_ms", "delay of a token p99", "ms", 2, lambda load: delay_s(load.gap_s, 99) * 1e3
)
DELAY_MAX = Metric(
    "delay_max_ms", "delay of a token, worst", "ms", 2, lambda load: delay_s(load.gap_s, 100) * 1e3
)
LIVE_P50 = Metric(
    "live_p50_ms", "/health/live p50", "ms", 2, lambda load: percentile(load.probe_s, 50) * 1e3
)
LIVE_P999 = Metric(
    "live_p999_ms", "/health/live p99.9", "ms", 2, lambda load: percentile(load.probe_s, 99.9) * 1e3
)
