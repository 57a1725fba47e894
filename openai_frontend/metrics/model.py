"""Metrics of each model and of its generations. Costs nothing per token."""

from collections.abc import Iterable
from threading import Lock
from time import monotonic_ns
from typing import NamedTuple, get_args

from prometheus_client import CollectorRegistry

from openai_frontend.generation import CompletionDelta, UsageCounter
from openai_frontend.metrics import catalog
from openai_frontend.metrics.catalog import GenerationEnd, StallPhase


class ModelFamilies:
    """The metrics with the label `model`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.waiting = catalog.gauge(registry, catalog.REQUESTS_WAITING)
        self.unreleased = catalog.gauge(registry, catalog.UNRELEASED_REQUESTS)
        self.queue_s = catalog.histogram(registry, catalog.QUEUE_WAIT)
        self.running = catalog.gauge(registry, catalog.REQUESTS_RUNNING)
        self.ended = catalog.counter(registry, catalog.GENERATIONS)
        self.first_token_s = catalog.histogram(registry, catalog.TIME_TO_FIRST_TOKEN)
        self.token_s = catalog.histogram(registry, catalog.TIME_PER_OUTPUT_TOKEN)
        self.duration_s = catalog.histogram(registry, catalog.GENERATION_DURATION)
        self.prompt_tokens = catalog.histogram(registry, catalog.PROMPT_TOKENS)
        self.cached_tokens = catalog.counter(registry, catalog.CACHED_PROMPT_TOKENS)
        self.completion_tokens = catalog.histogram(registry, catalog.GENERATION_TOKENS)
        self.stalls = catalog.counter(registry, catalog.ENGINE_STALLS)
        self.restarts = catalog.counter(registry, catalog.ENGINE_RESTARTS)


class ModelMetrics:
    """The queue and engine metrics of one model."""

    def __init__(self, families: ModelFamilies, model: str) -> None:
        self.waiting = families.waiting.labels(model)
        self.unreleased = families.unreleased.labels(model)
        self.queue_s = families.queue_s.labels(model)
        self.restarts = families.restarts.labels(model)
        self.stalls = {
            phase: families.stalls.labels(model, phase) for phase in get_args(StallPhase)
        }


class GenerationLabels(NamedTuple):
    model: str  # name in Triton
    version: str  # number
    adapter: str = ""


class GenerationMetrics:
    """The metrics of one version with one LoRA adapter, or none."""

    def __init__(self, families: ModelFamilies, labels: GenerationLabels) -> None:
        self.running = families.running.labels(*labels)
        self.first_token_s = families.first_token_s.labels(*labels)
        self.token_s = families.token_s.labels(*labels)
        self.duration_s = families.duration_s.labels(*labels)
        self.prompt_tokens = families.prompt_tokens.labels(*labels)
        self.cached_tokens = families.cached_tokens.labels(*labels)
        self.completion_tokens = families.completion_tokens.labels(*labels)
        self._ended = {end: families.ended.labels(*labels, end) for end in get_args(GenerationEnd)}
        self._lock = Lock()  # scrapes run on a thread
        self._running: set[GenerationTimer] = set()
        self._ended_tokens = 0  # of generations that have ended
        self._reported_tokens = 0  # at the last scrape: a counter never falls

    def begin(self, usage: UsageCounter) -> "GenerationTimer":
        """Starts a generation. The caller calls `end` on it."""
        self.running.inc()
        generation = GenerationTimer(self, usage)
        with self._lock:
            self._running.add(generation)
        return generation

    def ended(self, generation: "GenerationTimer", end: GenerationEnd) -> None:
        self.running.dec()
        self._ended[end].inc()
        with self._lock:
            if generation in self._running:
                self._running.remove(generation)
                self._ended_tokens += generation.usage.completion_tokens

    def output_tokens(self) -> int:
        """Tokens so far, of running generations too. Thread-safe."""
        with self._lock:
            running = sum(generation.usage.completion_tokens for generation in self._running)
            self._reported_tokens = max(self._reported_tokens, self._ended_tokens + running)
            return self._reported_tokens


class GenerationTimer:
    """Observes one generation."""

    __slots__ = ("_failed", "_metrics", "usage")

    def __init__(self, metrics: GenerationMetrics, usage: UsageCounter) -> None:
        self.usage = usage
        self._metrics = metrics
        self._failed = False

    def add(self, deltas: Iterable[CompletionDelta]) -> None:
        """Counts the deltas of one wake-up."""
        usage = self.usage
        begins = usage.first_token_ns is None
        usage.add(deltas)
        if begins and (first_ns := usage.first_token_ns) is not None:
            self._metrics.first_token_s.observe((first_ns - usage.begun_ns) / 1e9)

    def failed(self) -> None:
        """The generation will end with `error`."""
        self._failed = True

    def end(self) -> None:
        """Records the generation, however it ended."""
        metrics, usage, now_ns = self._metrics, self.usage, monotonic_ns()
        tokens = usage.completion_tokens
        metrics.ended(self, self._end())
        usage.end()
        metrics.duration_s.observe((now_ns - usage.begun_ns) / 1e9)
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
