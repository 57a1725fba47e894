"""What one family of metrics is, in the words of whoever looks at it. Counts nothing."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One row of `docs/metrics.md`, and what `/metrics` says of it."""

    name: str  # in full; a counter's samples add `_total`
    kind: Kind
    help: str  # its help: one sentence
    runbook: str  # what an operator does when it moves
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # of a histogram's buckets
