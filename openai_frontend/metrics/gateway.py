"""Records the metrics that `catalog.py` declares. Costs nothing per token."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from openai_frontend.errors import Rejection
from openai_frontend.metrics import catalog
from openai_frontend.metrics.catalog import MetricSpec, StallPhase, TimeoutKind
from openai_frontend.metrics.model import (
    GenerationLabels,
    GenerationMetrics,
    ModelFamilies,
    ModelMetrics,
)

# Counters kept elsewhere and read at each scrape
_CALLBACK_COUNTERS = (
    catalog.FAST_PATH_TOKENS,
    catalog.FAST_PATH_WRITES,
    catalog.LOG_LINES_DROPPED,
    catalog.TRACES_DROPPED,
)


class GatewayMetrics:
    """The metrics of one application. `model` is always the name in Triton."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._callbacks: dict[str, Callable[[], float]] = {}
        self.registry.register(_CallbackCounters(self._callbacks))
        self._requests = catalog.counter(self.registry, catalog.REQUESTS)
        self._request_s = catalog.histogram(self.registry, catalog.REQUEST_DURATION)
        self.at_work = catalog.gauge(self.registry, catalog.REQUESTS_IN_PROGRESS)
        self.streams = catalog.gauge(self.registry, catalog.STREAMS_OPEN)
        self._rejected = catalog.counter(self.registry, catalog.REQUESTS_REJECTED)
        self._lag_s = catalog.histogram(self.registry, catalog.EVENT_LOOP_LAG)
        self._slow_clients = catalog.counter(self.registry, catalog.SLOW_CLIENTS_DISCONNECTED)
        self._timeouts = catalog.counter(self.registry, catalog.TIMEOUTS)
        self._models = ModelFamilies(self.registry)
        self._by_model: dict[str, ModelMetrics] = {}
        self._generations: dict[GenerationLabels, GenerationMetrics] = {}
        self.registry.register(_OutputTokens(self._generations))
        for kind in get_args(TimeoutKind):
            self._timeouts.labels(kind)  # reported from the start, as zero

    def answered(self, route: str, model: str, status: int, seconds: float) -> None:
        """`model` is empty if the request named no served model."""
        self._requests.labels(route, model, status).inc()
        self._request_s.labels(route).observe(seconds)

    def rejected(self, model: str, reason: Rejection) -> None:
        """`model` is empty if the model was not looked up yet.

        The metrics middleware counts rejections by error: call this only for requests that are
        rejected before they reach the application.
        """
        self._rejected.labels(model, reason).inc()

    def unreleased_changed(self, model: str, count: int) -> None:
        """`count`: cancelled requests that Triton has not released."""
        self.of(model).unreleased.set(count)

    def queued(self, model: str, seconds: float) -> None:
        """A request left the queue of a model, for any reason, after this time."""
        self.of(model).queue_s.observe(seconds)

    def queue_changed(self, model: str, waiting: int) -> None:
        self.of(model).waiting.set(waiting)

    def engine_restarted(self, model: str) -> None:
        self.of(model).restarts.inc()

    def engine_stalled(self, model: str, phase: StallPhase) -> None:
        self.of(model).stalls[phase].inc()

    def slow_client_disconnected(self) -> None:
        """A stream was ended because its client did not read."""
        self._slow_clients.inc()

    def timed_out(self, kind: TimeoutKind) -> None:
        self._timeouts.labels(kind).inc()

    def lagged(self, seconds: float) -> None:
        """Observes a delay of the event loop."""
        self._lag_s.observe(seconds)

    def set_callback(self, spec: MetricSpec, read: Callable[[], float]) -> None:
        """`read` returns the value of the counter at each scrape; until it is set, 0."""
        self._callbacks[spec.name] = read

    def of(self, model: str) -> ModelMetrics:
        """The metrics of a model: the same object for the same name."""
        known = self._by_model.get(model)
        if known is None:
            known = self._by_model[model] = ModelMetrics(self._models, model)
        return known

    def generations_of(self, labels: GenerationLabels) -> GenerationMetrics:
        """The metrics of a version's generations: the same object for the same labels."""
        known = self._generations.get(labels)
        if known is None:
            self.of(labels.model)  # so that its stalls and restarts are reported as zero
            known = self._generations[labels] = GenerationMetrics(self._models, labels)
        return known


@dataclass(frozen=True, slots=True, eq=False)
class _CallbackCounters(Collector):
    """Counters whose values are kept outside of this registry."""

    callbacks: Mapping[str, Callable[[], float]]  # name -> reads the counter

    def collect(self) -> Iterable[Metric]:
        for spec in _CALLBACK_COUNTERS:
            read = self.callbacks.get(spec.name, int)  # int() is 0
            yield CounterMetricFamily(spec.name, spec.help, value=read())


@dataclass(frozen=True, slots=True, eq=False)
class _OutputTokens(Collector):
    """Output tokens by model, those of running generations included."""

    generations: Mapping[GenerationLabels, GenerationMetrics]

    def collect(self) -> Iterable[Metric]:
        spec = catalog.OUTPUT_TOKENS
        metric = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
        for labels, generations in [*self.generations.items()]:  # the event loop may add one
            metric.add_metric(labels, generations.output_tokens())
        yield metric
