"""The metrics of a load on a server whose frontend and engine are separate processes."""

from collections.abc import Callable

from benchmarks import metric
from benchmarks.load import Measured
from benchmarks.metric import Metric
from benchmarks.peers.processes import ENGINE, FRONTEND, SUPERVISOR


def _frontend_s(measured: Measured) -> float:
    return measured.cpu_s[FRONTEND] + measured.cpu_s[SUPERVISOR]


def _engine_s(measured: Measured) -> float:
    return measured.cpu_s[ENGINE]


def _cpu_per(
    unit: str, digits: int, count: Callable[[Measured], float], *, prefix: str = ""
) -> tuple[Metric, Metric]:
    """CPU time of the frontend and of the engine for each token, text or request."""
    return (
        Metric(
            f"{prefix}frontend_us",
            f"frontend CPU per {unit}",
            "us",
            digits,
            lambda measured: _frontend_s(measured) / count(measured) * 1e6,
        ),
        Metric(
            f"{prefix}engine_us",
            f"engine CPU per {unit}",
            "us",
            digits,
            lambda measured: _engine_s(measured) / count(measured) * 1e6,
        ),
    )


CHAT = (
    *_cpu_per("token", 1, lambda measured: measured.tokens),
    Metric("tokens_per_s", "tokens per second", "1/s", 0, lambda measured: measured.tokens_per_s),
    metric.TTFT_P50,
    metric.TTFT_P99,
    metric.GAP_P50,
    metric.GAP_P99,
    metric.LATENCY_P50,
    metric.LATENCY_P99,
    metric.TOKENS_PER_CHUNK,
)
ANSWERS = (
    *_cpu_per("request", 0, lambda measured: measured.responses, prefix="request_"),
    Metric(
        "requests_per_s",
        "requests per second",
        "1/s",
        1,
        lambda measured: measured.responses_per_s,
    ),
    metric.LATENCY_P50,
    metric.LATENCY_P99,
)
STREAMS_AND_PROBES = (*CHAT, metric.LIVE_P50, metric.LIVE_P999)
EMBEDDINGS = (
    metric.LATENCY_P50,
    metric.LATENCY_P99,
    *_cpu_per("text", 0, lambda measured: measured.texts, prefix="text_"),
    Metric(
        "texts_per_s",
        "texts per second",
        "1/s",
        1,
        lambda measured: measured.texts / measured.seconds,
    ),
)
ALL = tuple(dict.fromkeys((*STREAMS_AND_PROBES, *ANSWERS, *EMBEDDINGS)))
