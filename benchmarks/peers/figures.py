"""Every figure of a load, in the table's order, and how it follows from what was measured."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers.load import Measured
from benchmarks.peers.processes import ENGINE, FRONTEND, SUPERVISOR


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a table; `of` gives None where a load has no such figure."""

    name: str
    title: str
    unit: str
    digits: int
    of: Callable[[Measured], float | None]


def _per_token(*roles: str) -> Callable[[Measured], float | None]:
    def of(measured: Measured) -> float | None:
        spent_s = sum(measured.cpu_s[role] for role in roles)
        return spent_s / measured.tokens * 1e6 if measured.tokens else None

    return of


def _per_text(role: str) -> Callable[[Measured], float | None]:
    def of(measured: Measured) -> float | None:
        return measured.cpu_s[role] / measured.texts * 1e6 if measured.texts else None

    return of


def _time(kind: str, share: str) -> Callable[[Measured], float | None]:
    return lambda measured: getattr(getattr(measured, kind), share, None)


def _rate(name: str) -> Callable[[Measured], float | None]:
    return lambda measured: getattr(measured, name) / measured.seconds or None


def _tokens_per_chunk(measured: Measured) -> float | None:
    return measured.tokens / measured.chunks if measured.tokens else None


FIGURES = (
    Figure("frontend_us", "frontend CPU per token", "us", 1, _per_token(FRONTEND, SUPERVISOR)),
    Figure("engine_us", "engine CPU per token", "us", 1, _per_token(ENGINE)),
    Figure("tokens_per_s", "tokens per second", "1/s", 0, _rate("tokens")),
    Figure("ttft_p50", "TTFT p50", "ms", 1, _time("ttft", "p50")),
    Figure("ttft_p99", "TTFT p99", "ms", 1, _time("ttft", "p99")),
    Figure("gap_p50", "gap between chunks p50", "ms", 2, _time("gap", "p50")),
    Figure("gap_p99", "gap between chunks p99", "ms", 2, _time("gap", "p99")),
    Figure("latency_p50", "whole answer p50", "ms", 1, _time("latency", "p50")),
    Figure("latency_p99", "whole answer p99", "ms", 1, _time("latency", "p99")),
    Figure("tokens_per_chunk", "tokens per chunk", "", 3, _tokens_per_chunk),
    Figure("text_frontend_us", "frontend CPU per text", "us", 0, _per_text(FRONTEND)),
    Figure("text_engine_us", "engine CPU per text", "us", 0, _per_text(ENGINE)),
    Figure("texts_per_s", "texts per second", "1/s", 1, _rate("texts")),
)


def figures(measured: Measured) -> dict[str, float]:
    """Those that this load has."""
    values = {figure.name: figure.of(measured) for figure in FIGURES}
    return {name: value for name, value in values.items() if value is not None}
