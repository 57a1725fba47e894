"""What the gateway counts of itself, by `prometheus_client`. Knows no HTTP, no text of Triton's.

What is counted is declared in `catalog.py`; nothing here costs anything for a token.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from openai_frontend.errors import Rejection
from openai_frontend.metrics import catalog, registered
from openai_frontend.metrics.catalog import ReloadOutcome, StallPhase, TimeoutKind
from openai_frontend.metrics.family import MetricSpec
from openai_frontend.metrics.model import (
    GenerationLabels,
    GenerationMetrics,
    ModelFamilies,
    ModelMetrics,
)

# Counters that somebody else keeps
_ASKED = (
    catalog.RELAYED_TEXTS,
    catalog.RELAY_WRITES,
    catalog.LOG_LINES_LOST,
    catalog.TRACE_REQUESTS_LOST,
)


class GatewayMetrics:
    """One for each application. `registry` holds every family.

    A `model` is named here as Triton names it, so that all families agree.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._kept_elsewhere: dict[str, Callable[[], float]] = {}
        self.registry.register(_CallbackCounters(self._kept_elsewhere))
        self._requests = registered.counter(self.registry, catalog.REQUESTS)
        self._request_s = registered.histogram(self.registry, catalog.REQUEST_S)
        self.at_work = registered.gauge(self.registry, catalog.AT_WORK)
        self.streams = registered.gauge(self.registry, catalog.STREAMS)
        self._rejected = registered.counter(self.registry, catalog.REJECTED)
        self._lag_s = registered.histogram(self.registry, catalog.LAG_S)
        self._readers_dropped = registered.counter(self.registry, catalog.READERS_DROPPED)
        self._timeouts = registered.counter(self.registry, catalog.TIMEOUTS)
        self._reloads = registered.counter(self.registry, catalog.RELOADS)
        self._models = ModelFamilies(self.registry)
        self._by_model: dict[str, ModelMetrics] = {}
        self._answers: dict[GenerationLabels, GenerationMetrics] = {}
        self.registry.register(_OutputTokens(self._answers))
        for kind in get_args(TimeoutKind):
            self._timeouts.labels(kind)  # there from the start, at zero
        for outcome in get_args(ReloadOutcome):
            self._reloads.labels(outcome)

    def answered(self, route: str, model: str, status: int, seconds: float) -> None:
        """One more request; `model` is empty where it named none that is served."""
        self._requests.labels(route, model, status).inc()
        self._request_s.labels(route).observe(seconds)

    def rejected(self, model: str, reason: Rejection) -> None:
        """A request was refused for load or state; `model` is empty where none was looked up.

        Whatever is refused with one of our errors is counted by `RequestMetrics`: call this only
        for what is refused before the application sees it.
        """
        self._rejected.labels(model, reason).inc()

    def unreleased_changed(self, model: str, count: int) -> None:
        """So many cancelled requests to a served model has Triton not released."""
        self.of(model).unreleased.set(count)

    def queued(self, model: str, seconds: float) -> None:
        """A request has left the queue of a served model, for whatever reason, after so long."""
        self.of(model).queue_s.observe(seconds)

    def queue_changed(self, model: str, waiting: int) -> None:
        """So many requests wait for a served model now."""
        self.of(model).waiting.set(waiting)

    def settings_reloaded(self, outcome: ReloadOutcome) -> None:
        """The settings have been read again, and are in force or are not."""
        self._reloads.labels(outcome).inc()

    def engine_restarted(self, model: str) -> None:
        """A served model's engine has been started again."""
        self.of(model).restarts.inc()

    def watchdog_fired(self, model: str, kind: StallPhase) -> None:
        """A served model's engine has been found to be stuck."""
        self.of(model).stuck[kind].inc()

    def slow_client_disconnected(self) -> None:
        """A stream was ended because its client did not read."""
        self._readers_dropped.inc()

    def timed_out(self, kind: TimeoutKind) -> None:
        """A request was ended for the time it took."""
        self._timeouts.labels(kind).inc()

    def lagged(self, seconds: float) -> None:
        """The event loop was late by so much."""
        self._lag_s.observe(seconds)

    def ask(self, family: MetricSpec, count: Callable[[], float]) -> None:
        """Who keeps this counter; 0 before anybody does. `count` is asked at each scrape."""
        self._kept_elsewhere[family.name] = count

    def of(self, model: str) -> ModelMetrics:
        """A served model's; the same object for the same name."""
        known = self._by_model.get(model)
        if known is None:
            known = self._by_model[model] = ModelMetrics(self._models, model)
        return known

    def generations_of(self, labels: GenerationLabels) -> GenerationMetrics:
        """Those of a version's answers; the same object for the same labels."""
        known = self._answers.get(labels)
        if known is None:
            self.of(labels.model)  # the watchdog and restarts of a model in use begin at zero
            known = self._answers[labels] = GenerationMetrics(self._models, labels)
        return known


@dataclass(frozen=True, slots=True, eq=False)
class _CallbackCounters(Collector):
    """Counters that somebody else keeps."""

    counts: Mapping[str, Callable[[], float]]  # family's name -> its count so far

    def collect(self) -> Iterable[Metric]:
        for family in _ASKED:
            count = self.counts.get(family.name, int)  # int() is 0
            yield CounterMetricFamily(family.name, family.help, value=count())


@dataclass(frozen=True, slots=True, eq=False)
class _OutputTokens(Collector):
    """The tokens of the models' answers so far, answers under way among them."""

    answers: Mapping[GenerationLabels, GenerationMetrics]

    def collect(self) -> Iterable[Metric]:
        family = catalog.OUTPUT_TOKENS
        metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
        for labels, answers in [*self.answers.items()]:  # the event loop may add one meanwhile
            metric.add_metric(labels, answers.output_tokens())
        yield metric
