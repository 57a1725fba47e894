"""What the gateway counts of itself, by `prometheus_client`. Knows no HTTP, no text of Triton's.

Labels have values from closed sets alone: addresses as routes spell them, models that are served.
A client cannot make one.
"""

from collections.abc import Iterable
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from openai_frontend.generation import CompletionDelta

_PREFIX = "openai_frontend"

# Seconds, and tokens. They hold the bounds that vLLM has for the same, and some beyond.
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40)  # fmt: skip  # noqa: E501
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)  # fmt: skip  # noqa: E501
_REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_ANSWER_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 300, 600)
_TOKENS = tuple(digit * 10**power for power in range(7) for digit in (1, 2, 5))
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class GatewayMetrics:
    """One for each application. `registry` holds every family."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "Requests that have been answered.", ("route", "model", "status")
        )
        self._request_s = self._histogram(
            "request_seconds", "Seconds from a request to the end of its answer.",
            ("route",), _REQUEST_S,
        )  # fmt: skip
        self._lag_s = self._histogram(
            "event_loop_lag_seconds", "Seconds that a timer of the event loop comes late.",
            (), _LAG_S,
        )  # fmt: skip
        self._models = _Models(self)
        self._by_model: dict[str, ModelMetrics] = {}

    def answered(self, route: str, model: str, status: int, seconds: float) -> None:
        """One more request; `model` is empty where it named none that is served."""
        self._requests.labels(route, model, status).inc()
        self._request_s.labels(route).observe(seconds)

    def lagged(self, seconds: float) -> None:
        """The event loop was late by so much."""
        self._lag_s.observe(seconds)

    def of(self, model: str) -> "ModelMetrics":
        """A served model's; the same object for the same name."""
        known = self._by_model.get(model)
        if known is None:
            known = self._by_model[model] = ModelMetrics(self._models, model)
        return known

    def _counter(self, name: str, help: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"{_PREFIX}_{name}", help, labels, registry=self.registry)

    def _gauge(self, name: str, help: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", help, labels, registry=self.registry)

    def _histogram(
        self, name: str, help: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(f"{_PREFIX}_{name}", help, labels, buckets=buckets, registry=self.registry)


class _Models:
    """The families with a label for the model."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        model = ("model",)
        self.running = metrics._gauge("running_generations", "Answers being made now.", model)
        self.ended = metrics._counter(
            "generations", "Answers, by how they ended: stop, length, cancelled, error.",
            ("model", "end"),
        )  # fmt: skip
        self.first_token_s = metrics._histogram(
            "time_to_first_token_seconds", "Seconds from Triton's request to its first token.",
            model, _FIRST_TOKEN_S,
        )  # fmt: skip
        self.token_s = metrics._histogram(
            "time_per_output_token_seconds", "Seconds for each token after the first, by answer.",
            model, _TOKEN_S,
        )  # fmt: skip
        self.answer_s = metrics._histogram(
            "generation_seconds", "Seconds from Triton's request to its end.", model, _ANSWER_S
        )
        self.prompt_tokens = metrics._histogram(
            "prompt_tokens", "Tokens of each prompt.", model, _TOKENS
        )
        self.cached_tokens = metrics._counter(
            "cached_prompt_tokens", "Those of them that the engine's prefix cache held.", model
        )
        self.completion_tokens = metrics._histogram(
            "generation_tokens", "Tokens of each answer.", model, _TOKENS
        )


class ModelMetrics:
    """One model's part of the families; each answer is watched by a `Generation`."""

    def __init__(self, families: _Models, model: str) -> None:
        self.running = families.running.labels(model)
        self.first_token_s = families.first_token_s.labels(model)
        self.token_s = families.token_s.labels(model)
        self.answer_s = families.answer_s.labels(model)
        self.prompt_tokens = families.prompt_tokens.labels(model)
        self.cached_tokens = families.cached_tokens.labels(model)
        self.completion_tokens = families.completion_tokens.labels(model)
        self._ended = {
            end: families.ended.labels(model, end)
            for end in ("stop", "length", "cancelled", "error")
        }

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
