"""What the gateway counts of itself, by `prometheus_client`. Knows no HTTP, no text of Triton's.

What is counted is declared in `declared.py`; nothing here costs anything for a token.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from openai_frontend.errors import Rejection
from openai_frontend.generation import CompletionDelta
from openai_frontend.metrics import declared
from openai_frontend.metrics.declared import End, ReloadOutcome, TimeoutKind, WatchdogKind
from openai_frontend.metrics.family import Family

RelayCounts = Callable[[], Mapping[str, int]]  # gives "texts" and "writes", so far


def _no_relay() -> Mapping[str, int]:
    return {"texts": 0, "writes": 0}


class GatewayMetrics:
    """One for each application. `registry` holds every family."""

    def __init__(self, relay_counts: RelayCounts = _no_relay) -> None:
        """`relay_counts` is asked at each scrape: what it tells is counted below Python."""
        self.registry = CollectorRegistry()
        self.registry.register(_Relay(relay_counts))
        self._requests = self._counter(declared.REQUESTS)
        self._request_s = self._histogram(declared.REQUEST_S)
        self.at_work = self._gauge(declared.AT_WORK)
        self.streams = self._gauge(declared.STREAMS)
        self._rejected = self._counter(declared.REJECTED)
        self._lag_s = self._histogram(declared.LAG_S)
        self._readers_dropped = self._counter(declared.READERS_DROPPED)
        self._timeouts = self._counter(declared.TIMEOUTS)
        self._reloads = self._counter(declared.RELOADS)
        self._models = _Models(self)
        self._by_model: dict[str, ModelMetrics] = {}
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

    def watchdog_fired(self, model: str, kind: WatchdogKind) -> None:
        """A served model's engine has been found to be stuck."""
        self.of(model).stuck[kind].inc()

    def reader_dropped(self) -> None:
        """A stream was ended because its client did not read."""
        self._readers_dropped.inc()

    def timed_out(self, kind: TimeoutKind) -> None:
        """A request was ended for the time it took."""
        self._timeouts.labels(kind).inc()

    def lagged(self, seconds: float) -> None:
        """The event loop was late by so much."""
        self._lag_s.observe(seconds)

    def of(self, model: str) -> "ModelMetrics":
        """A served model's; the same object for the same name."""
        known = self._by_model.get(model)
        if known is None:
            known = self._by_model[model] = ModelMetrics(self._models, model)
        return known

    def _counter(self, family: Family) -> Counter:
        return Counter(family.name, family.says, family.labels, registry=self.registry)

    def _gauge(self, family: Family) -> Gauge:
        return Gauge(family.name, family.says, family.labels, registry=self.registry)

    def _histogram(self, family: Family) -> Histogram:
        return Histogram(
            family.name, family.says, family.labels, buckets=family.bounds, registry=self.registry
        )


@dataclass(frozen=True, slots=True)
class _Relay(Collector):
    """The counters of the native writer."""

    counts: RelayCounts

    def collect(self) -> Iterable[Metric]:
        counts = self.counts()
        for family, name in ((declared.RELAYED_TEXTS, "texts"), (declared.RELAY_WRITES, "writes")):
            yield CounterMetricFamily(family.name, family.says, value=counts[name])


class _Models:
    """The families with a label for the model."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self.waiting = metrics._gauge(declared.WAITING)
        self.queue_s = metrics._histogram(declared.QUEUE_S)
        self.running = metrics._gauge(declared.RUNNING)
        self.ended = metrics._counter(declared.ENDED)
        self.first_token_s = metrics._histogram(declared.FIRST_TOKEN_S)
        self.token_s = metrics._histogram(declared.TOKEN_S)
        self.answer_s = metrics._histogram(declared.ANSWER_S)
        self.prompt_tokens = metrics._histogram(declared.PROMPT_TOKENS)
        self.cached_tokens = metrics._counter(declared.CACHED_TOKENS)
        self.completion_tokens = metrics._histogram(declared.COMPLETION_TOKENS)
        self.stuck = metrics._counter(declared.WATCHDOG)
        self.restarts = metrics._counter(declared.ENGINE_RESTARTS)


class ModelMetrics:
    """One model's part of the families; each answer is watched by a `Generation`."""

    def __init__(self, families: _Models, model: str) -> None:
        self.waiting = families.waiting.labels(model)
        self.queue_s = families.queue_s.labels(model)
        self.running = families.running.labels(model)
        self.first_token_s = families.first_token_s.labels(model)
        self.token_s = families.token_s.labels(model)
        self.answer_s = families.answer_s.labels(model)
        self.prompt_tokens = families.prompt_tokens.labels(model)
        self.cached_tokens = families.cached_tokens.labels(model)
        self.completion_tokens = families.completion_tokens.labels(model)
        self.restarts = families.restarts.labels(model)
        self.stuck = {kind: families.stuck.labels(model, kind) for kind in get_args(WatchdogKind)}
        self._ended = {end: families.ended.labels(model, end) for end in get_args(End)}

    def begin(self) -> "Generation":
        """One more answer is being made; whoever begins it calls `end`."""
        self.running.inc()
        return Generation(self)

    def ended(self, end: str) -> None:
        """One answer fewer; `end` is how."""
        self.running.dec()
        self._ended[end].inc()


class Generation:
    """One answer in the making."""

    __slots__ = ("_begun_s", "_completion_tokens", "_end", "_first_s", "_model")

    def __init__(self, model: ModelMetrics) -> None:
        self._model = model
        self._begun_s = perf_counter()
        self._first_s: float | None = None
        self._completion_tokens = 0
        self._end = "cancelled"  # unless it ends in another way

    def add(self, deltas: Iterable[CompletionDelta]) -> None:
        """What one wake-up brought."""
        if self._first_s is None:
            self._first_s = perf_counter()
            self._model.first_token_s.observe(self._first_s - self._begun_s)
        for delta in deltas:
            counts = delta.counts
            if counts is not None:
                self._completion_tokens += counts.completion_tokens
            if delta.finish_reason is None:
                continue
            self._end = "error" if delta.finish_reason == "abort" else delta.finish_reason
            if counts is not None:
                self._model.prompt_tokens.observe(counts.prompt_tokens)
                self._model.cached_tokens.inc(counts.cached_tokens)

    def failed(self) -> None:
        """It ends with an error."""
        self._end = "error"

    def end(self) -> None:
        """It is over, whatever ended it."""
        model, tokens, now_s = self._model, self._completion_tokens, perf_counter()
        model.ended(self._end)
        model.answer_s.observe(now_s - self._begun_s)
        model.completion_tokens.observe(tokens)
        if tokens > 1 and self._first_s is not None:
            model.token_s.observe((now_s - self._first_s) / (tokens - 1))
