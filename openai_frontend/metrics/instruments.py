"""Counters, gauges and histograms. prometheus_client writes them, but does not keep their values.

Only the event loop's thread changes values, so they need no lock; scrapes read them on a thread.
They copy a table first, which is one step: a list of its items allocates each of them, and a
garbage collection may let the event loop add an item in between.

prometheus_client's own take a lock for each addition and compare a value with one bound after the
other: a short chat, which changes 17 values, took 17 us of CPU time more
(docs/decisions/0025-own-code.md).
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Value:
    """One counter or gauge: a family's value for one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def dec(self) -> None:
        self.value -= 1

    def set(self, value: float) -> None:
        self.value = value


class Distribution:
    """One histogram. An observation counts in the first bucket whose upper bound it does not
    exceed.
    """

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last has no bound
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class ValueFamily(Collector):
    """A counter or gauge with labels."""

    def __init__(
        self,
        family: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        help: str,
        labels: Sequence[str],
    ) -> None:
        self._family, self._name, self._help, self._labels = family, name, help, labels
        self._values: dict[tuple[Hashable, ...], Value] = {}
        if not labels:
            self.labels()  # reported from the start, as zero

    def labels(self, *values: Hashable) -> Value:
        """The value for these labels: the same object each time."""
        known = self._values.get(values)
        if known is None:
            known = self._values[values] = Value()
        return known

    def collect(self) -> Iterable[Metric]:
        metric = self._family(self._name, self._help, labels=self._labels)
        for labels, value in self._values.copy().items():
            metric.add_metric([str(each) for each in labels], value.value)
        yield metric


class HistogramFamily(Collector):
    """A histogram with labels."""

    def __init__(
        self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self._name, self._help, self._labels, self._bounds = name, help, labels, bounds
        self._histograms: dict[tuple[Hashable, ...], Distribution] = {}
        self._bound_labels = [*map(floatToGoString, bounds), "+Inf"]
        if not labels:
            self.labels()

    def labels(self, *values: Hashable) -> Distribution:
        """The histogram for these labels: the same object each time."""
        known = self._histograms.get(values)
        if known is None:
            known = self._histograms[values] = Distribution(self._bounds)
        return known

    def collect(self) -> Iterable[Metric]:
        metric = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for labels, histogram in self._histograms.copy().items():
            buckets = [*zip(self._bound_labels, accumulate(histogram.counts), strict=True)]
            metric.add_metric([str(each) for each in labels], buckets, histogram.sum)
        yield metric
