"""What is counted of each model, and of each answer that it makes. Nothing for each token."""

from collections.abc import Iterable
from threading import Lock
from time import monotonic_ns
from typing import NamedTuple, get_args

from prometheus_client import CollectorRegistry

from openai_frontend.generation import CompletionDelta, UsageCounter
from openai_frontend.metrics import catalog, registered
from openai_frontend.metrics.catalog import GenerationEnd, StallPhase


class ModelFamilies:
    """The families with a label for the model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.waiting = registered.gauge(registry, catalog.WAITING)
        self.unreleased = registered.gauge(registry, catalog.UNRELEASED)
        self.queue_s = registered.histogram(registry, catalog.QUEUE_S)
        self.running = registered.gauge(registry, catalog.RUNNING)
        self.ended = registered.counter(registry, catalog.ENDED)
        self.first_token_s = registered.histogram(registry, catalog.FIRST_TOKEN_S)
        self.token_s = registered.histogram(registry, catalog.TOKEN_S)
        self.answer_s = registered.histogram(registry, catalog.ANSWER_S)
        self.prompt_tokens = registered.histogram(registry, catalog.PROMPT_TOKENS)
        self.cached_tokens = registered.counter(registry, catalog.CACHED_TOKENS)
        self.completion_tokens = registered.histogram(registry, catalog.COMPLETION_TOKENS)
        self.stuck = registered.counter(registry, catalog.WATCHDOG)
        self.restarts = registered.counter(registry, catalog.ENGINE_RESTARTS)


class ModelMetrics:
    """What one model's queue and engines are counted by."""

    def __init__(self, families: ModelFamilies, model: str) -> None:
        self.waiting = families.waiting.labels(model)
        self.unreleased = families.unreleased.labels(model)
        self.queue_s = families.queue_s.labels(model)
        self.restarts = families.restarts.labels(model)
        self.stuck = {kind: families.stuck.labels(model, kind) for kind in get_args(StallPhase)}


class GenerationLabels(NamedTuple):
    """What makes an answer."""

    model: str  # in Triton
    version: str  # its number
    adapter: str = ""


class GenerationMetrics:
    """What the answers of one version, with one adapter or none, are counted by; each answer is
    watched by a `GenerationTimer`.
    """

    def __init__(self, families: ModelFamilies, labels: GenerationLabels) -> None:
        self.running = families.running.labels(*labels)
        self.first_token_s = families.first_token_s.labels(*labels)
        self.token_s = families.token_s.labels(*labels)
        self.answer_s = families.answer_s.labels(*labels)
        self.prompt_tokens = families.prompt_tokens.labels(*labels)
        self.cached_tokens = families.cached_tokens.labels(*labels)
        self.completion_tokens = families.completion_tokens.labels(*labels)
        self._ended = {end: families.ended.labels(*labels, end) for end in get_args(GenerationEnd)}
        self._lock = Lock()  # scrapes are answered on a thread
        self._running: set[GenerationTimer] = set()
        self._ended_tokens = 0  # of those that have ended
        self._told_tokens = 0  # at the last look: a counter never falls

    def begin(self, usage: UsageCounter) -> "GenerationTimer":
        """One more answer is being made; whoever begins it calls `end`."""
        self.running.inc()
        generation = GenerationTimer(self, usage)
        with self._lock:
            self._running.add(generation)
        return generation

    def ended(self, generation: "GenerationTimer", end: GenerationEnd) -> None:
        """One answer fewer; `end` is how."""
        self.running.dec()
        self._ended[end].inc()
        with self._lock:
            if generation in self._running:
                self._running.remove(generation)
                self._ended_tokens += generation.usage.completion_tokens

    def output_tokens(self) -> int:
        """How many have come so far; asked on any thread."""
        with self._lock:
            running = sum(generation.usage.completion_tokens for generation in self._running)
            self._told_tokens = max(self._told_tokens, self._ended_tokens + running)
            return self._told_tokens


class GenerationTimer:
    """One answer in the making."""

    __slots__ = ("_failed", "_metrics", "usage")

    def __init__(self, metrics: GenerationMetrics, usage: UsageCounter) -> None:
        self.usage = usage
        self._metrics = metrics
        self._failed = False

    def add(self, deltas: Iterable[CompletionDelta]) -> None:
        """What one wake-up brought."""
        usage = self.usage
        begins = usage.first_token_ns is None
        usage.add(deltas)
        if begins and (first_ns := usage.first_token_ns) is not None:
            self._metrics.first_token_s.observe((first_ns - usage.begun_ns) / 1e9)

    def failed(self) -> None:
        """It ends with an error."""
        self._failed = True

    def end(self) -> None:
        """It is over, whatever ended it."""
        metrics, usage, now_ns = self._metrics, self.usage, monotonic_ns()
        tokens = usage.completion_tokens
        metrics.ended(self, self._end())
        usage.end()
        metrics.answer_s.observe((now_ns - usage.begun_ns) / 1e9)
        metrics.completion_tokens.observe(tokens)
        if usage.finished:
            metrics.prompt_tokens.observe(usage.prompt_tokens)
            metrics.cached_tokens.inc(usage.cached_tokens)
        if tokens > 1 and (first_ns := usage.first_token_ns) is not None:
            metrics.token_s.observe((now_ns - first_ns) / 1e9 / (tokens - 1))

    def _end(self) -> GenerationEnd:
        reason = self.usage.finish_reason
        if self._failed or reason == "abort":
            return "error"
        return "cancelled" if reason is None else reason
