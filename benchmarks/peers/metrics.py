"""The metrics of a load on a server whose frontend and engine are separate processes."""

from benchmarks import metric
from benchmarks.load import Measured
from benchmarks.metric import Metric
from benchmarks.peers.processes import ENGINE, FRONTEND, SUPERVISOR


def _frontend_s(measured: Measured) -> float:
    return measured.cpu_s[FRONTEND] + measured.cpu_s[SUPERVISOR]


CHAT = (
    Metric(
        "frontend_us",
        "frontend CPU per token",
        "us",
        1,
        lambda measured: _frontend_s(measured) / measured.tokens * 1e6,
    ),
    Metric(
        "engine_us",
        "engine CPU per token",
        "us",
        1,
        lambda measured: measured.cpu_s[ENGINE] / measured.tokens * 1e6,
    ),
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
    Metric(
        "request_frontend_us",
        "frontend CPU per request",
        "us",
        0,
        lambda measured: _frontend_s(measured) / measured.responses * 1e6,
    ),
    Metric(
        "request_engine_us",
        "engine CPU per request",
        "us",
        0,
        lambda measured: measured.cpu_s[ENGINE] / measured.responses * 1e6,
    ),
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
EMBEDDINGS = (
    metric.LATENCY_P50,
    metric.LATENCY_P99,
    Metric(
        "text_frontend_us",
        "frontend CPU per text",
        "us",
        0,
        lambda measured: _frontend_s(measured) / measured.texts * 1e6,
    ),
    Metric(
        "text_engine_us",
        "engine CPU per text",
        "us",
        0,
        lambda measured: measured.cpu_s[ENGINE] / measured.texts * 1e6,
    ),
    Metric(
        "texts_per_s",
        "texts per second",
        "1/s",
        1,
        lambda measured: measured.texts / measured.seconds,
    ),
)
ALL = tuple(dict.fromkeys((*CHAT, *ANSWERS, *EMBEDDINGS)))
