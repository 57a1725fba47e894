"""What is counted of each model, and of each answer that it makes. Nothing for each token."""

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Protocol, get_args

from prometheus_client import CollectorRegistry

from openai_frontend.generation import CompletionDelta
from openai_frontend.metrics import declared, registered
from openai_frontend.metrics.declared import End, WatchdogKind


class Received(Protocol):
    """What must be known of the stream that an answer comes by."""

    @property
    def received(self) -> int:
        """Responses that have come so far."""


@dataclass(frozen=True, slots=True)
class _Nothing:
    received: int = 0


NOTHING_RECEIVED = _Nothing()


class Models:
    """The families with a label for the model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.waiting = registered.gauge(registry, declared.WAITING)
        self.queue_s = registered.histogram(registry, declared.QUEUE_S)
        self.running = registered.gauge(registry, declared.RUNNING)
        self.ended = registered.counter(registry, declared.ENDED)
        self.first_token_s = registered.histogram(registry, declared.FIRST_TOKEN_S)
        self.token_s = registered.histogram(registry, declared.TOKEN_S)
        self.answer_s = registered.histogram(registry, declared.ANSWER_S)
        self.prompt_tokens = registered.histogram(registry, declared.PROMPT_TOKENS)
        self.cached_tokens = registered.counter(registry, declared.CACHED_TOKENS)
        self.completion_tokens = registered.histogram(registry, declared.COMPLETION_TOKENS)
        self.stuck = registered.counter(registry, declared.WATCHDOG)
        self.restarts = registered.counter(registry, declared.ENGINE_RESTARTS)


class ModelMetrics:
    """One model's part of the families; each answer is watched by a `Generation`."""

    def __init__(self, families: Models, model: str) -> None:
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
        self._lock = Lock()  # scrapes are answered on a thread
        self._running: set[Generation] = set()
        self._responses = 0  # of those that have ended

    def begin(self, stream: Received = NOTHING_RECEIVED) -> "Generation":
        """One more answer is being made; whoever begins it calls `end`."""
        self.running.inc()
        generation = Generation(self, stream)
        with self._lock:
            self._running.add(generation)
        return generation

    def ended(self, generation: "Generation", end: str) -> None:
        """One answer fewer; `end` is how."""
        self.running.dec()
        self._ended[end].inc()
        with self._lock:
            if generation in self._running:
                self._running.remove(generation)
                self._responses += generation.stream.received

    def responses(self) -> int:
        """How many have come so far; asked on any thread."""
        with self._lock:
            running = sum(generation.stream.received for generation in self._running)
            return self._responses + running


class Generation:
    """One answer in the making."""

    __slots__ = ("_begun_s", "_completion_tokens", "_end", "_first_s", "_model", "stream")

    def __init__(self, model: ModelMetrics, stream: Received) -> None:
        self.stream = stream
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
        model.ended(self, self._end)
        model.answer_s.observe(now_s - self._begun_s)
        model.completion_tokens.observe(tokens)
        if tokens > 1 and self._first_s is not None:
            model.token_s.observe((now_s - self._first_s) / (tokens - 1))
