"""Records the metrics that `catalog.py` declares, of the gateway, each model and its generations.

Costs nothing per token.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from time import monotonic_ns
from typing import NamedTuple, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from openai_frontend.errors import Rejection
from openai_frontend.generation import CompletionDelta, UsageCounter
from openai_frontend.media.modalities import AudioFile, ImageInput
from openai_frontend.metrics import catalog
from openai_frontend.metrics.catalog import GenerationEnd, MetricSpec, StallPhase, TimeoutKind
from openai_frontend.metrics.instruments import Distribution, Value
from openai_frontend.request_context.record import APIS


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
        self.transferred_tokens = catalog.counter(registry, catalog.TRANSFERRED_PROMPT_TOKENS)
        self.completion_tokens = catalog.histogram(registry, catalog.GENERATION_TOKENS)
        self.stalls = catalog.counter(registry, catalog.ENGINE_STALLS)
        self.restarts = catalog.counter(registry, catalog.ENGINE_RESTARTS)
        self.sleeping = catalog.gauge(registry, catalog.MODEL_SLEEPING)
        self.freed_bytes = catalog.gauge(registry, catalog.MODEL_FREED_BYTES)
        self.wake_s = catalog.histogram(registry, catalog.MODEL_WAKE)


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
        self.transferred_tokens = families.transferred_tokens.labels(*labels)
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

    def ended(self, generation: "GenerationTimer", end: GenerationEnd, tokens: int) -> None:
        self.running.dec()
        self._ended[end].inc()
        with self._lock:
            if generation in self._running:
                self._running.remove(generation)
                self._ended_tokens += tokens

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
        metrics.ended(self, self._end(), tokens)
        usage.end()
        metrics.duration_s.observe((now_ns - usage.begun_ns) / 1e9)
        metrics.completion_tokens.observe(tokens)
        if usage.finished:
            metrics.prompt_tokens.observe(usage.prompt_tokens)
            if usage.cached_tokens:
                metrics.cached_tokens.inc(usage.cached_tokens)
            if usage.transferred_tokens:
                metrics.transferred_tokens.inc(usage.transferred_tokens)
        if tokens > 1 and (first_ns := usage.first_token_ns) is not None:
            metrics.token_s.observe((now_ns - first_ns) / 1e9 / (tokens - 1))

    def _end(self) -> GenerationEnd:
        reason = self.usage.finish_reason
        if self._failed or reason == "abort":
            return "error"
        if reason == "content_filter":  # a guard's, which ends the model as a parser does
            return "stop"
        return "cancelled" if reason is None else reason


class PrefillMetrics:
    """Prompts of a decode server, by the server that computed them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._remote = catalog.counter(registry, catalog.REMOTE_PREFILLS)
        self._local = catalog.counter(registry, catalog.LOCAL_PREFILLS)

    def local(self, model: str, reason: str) -> None:
        self._local.labels(model, reason).inc()

    def finished(self, model: str, transferred_tokens: int | None) -> None:
        """A generation with a transfer has ended. None: its engine does not report the tokens."""
        if transferred_tokens == 0:
            self.local(model, "not_transferred")
        else:
            self._remote.labels(model).inc()


# Values kept elsewhere and read at each scrape
_CALLBACKS = (
    catalog.BUCKET_COPY_FAILURES,
    catalog.BUFFERED_BODY_BYTES,
    catalog.BUFFERED_AUDIO_BYTES,
    catalog.FAST_PATH_TOKENS,
    catalog.FAST_PATH_WRITES,
    catalog.LOG_LINES_DROPPED,
    catalog.RATE_LIMIT_STORAGE_FAILURES,
    catalog.TRACES_DROPPED,
)


class ImageMetrics:
    """The metrics of images, by model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._images = catalog.counter(registry, catalog.IMAGES)
        self._bytes = catalog.counter(registry, catalog.IMAGE_BYTES)
        self._pixels = catalog.counter(registry, catalog.IMAGE_PIXELS)

    def read(self, model: str, images: Sequence[ImageInput]) -> None:
        """A request had these images."""
        self._images.labels(model).inc(len(images))
        self._bytes.labels(model).inc(sum(len(each.base64) * 3 // 4 for each in images))
        self._pixels.labels(model).inc(sum(each.width * each.height for each in images))


class AudioMetrics:
    """The metrics of audio, by model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._bytes = catalog.counter(registry, catalog.AUDIO_BYTES)
        self._seconds = catalog.counter(registry, catalog.AUDIO_SECONDS)
        self._decoding_s = catalog.histogram(registry, catalog.AUDIO_DECODING)

    def read(self, model: str, files: Sequence[AudioFile]) -> None:
        """A chat had these files."""
        self._bytes.labels(model).inc(sum(len(each.base64) * 3 // 4 for each in files))

    def decoded(self, model: str, size: int, seconds: float, took_s: float) -> None:
        """A file of so many bytes and seconds was decoded, which took `took_s`."""
        self._bytes.labels(model).inc(size)
        self._seconds.labels(model, "input").inc(seconds)
        self._decoding_s.labels(model).observe(took_s)

    def spoken(self, model: str, seconds: float) -> None:
        """A model made so many seconds of audio."""
        self._seconds.labels(model, "output").inc(seconds)


class _Answers(NamedTuple):
    """The metrics of answers with one route, model and status."""

    requests: Value
    seconds: Distribution


class GatewayMetrics:
    """The metrics of one application. `model` is always the name in Triton."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._callbacks: dict[str, Callable[[], float]] = {}
        self.registry.register(_CallbackValues(self._callbacks))
        self._requests = catalog.counter(self.registry, catalog.REQUESTS)
        self._request_s = catalog.histogram(self.registry, catalog.REQUEST_DURATION)
        self.at_work = catalog.gauge(self.registry, catalog.REQUESTS_IN_PROGRESS).labels()
        self.streams = catalog.gauge(self.registry, catalog.STREAMS_OPEN).labels()
        self._rejected = catalog.counter(self.registry, catalog.REQUESTS_REJECTED)
        self._guard_checks = catalog.counter(self.registry, catalog.GUARD_CHECKS)
        self._replica = catalog.gauge(self.registry, catalog.REPLICA_INFO)
        self._lag_s = catalog.histogram(self.registry, catalog.EVENT_LOOP_LAG).labels()
        self._slow_clients = catalog.counter(
            self.registry, catalog.SLOW_CLIENTS_DISCONNECTED
        ).labels()
        self._timeouts = catalog.counter(self.registry, catalog.TIMEOUTS)
        self._models = ModelFamilies(self.registry)
        self.prefills = PrefillMetrics(self.registry)
        self.images = ImageMetrics(self.registry)
        self.audio = AudioMetrics(self.registry)
        self._media_fetches = catalog.counter(self.registry, catalog.MEDIA_FETCHES)
        self._answers: dict[tuple[str, str, int], _Answers] = {}
        self._by_model: dict[str, ModelMetrics] = {}
        self._generations: dict[GenerationLabels, GenerationMetrics] = {}
        self.registry.register(_OutputTokens(self._generations))
        for kind in get_args(TimeoutKind):
            self._timeouts.labels(kind)  # reported from the start, as zero

    def name_replica(self, name: str) -> None:
        """Name this gateway among its replicas."""
        self._replica.labels(name).set(1)

    def answered(self, route: str, model: str, status: int, seconds: float) -> None:
        """`model` is empty if the request named no served model."""
        answers = self._answers.get((route, model, status))
        if answers is None:
            answers = self._answers[route, model, status] = self._answers_of(route, model, status)
        answers.requests.inc()
        answers.seconds.observe(seconds)

    def _answers_of(self, route: str, model: str, status: int) -> "_Answers":
        api = APIS.get(route, "")
        return _Answers(
            self._requests.labels(route, api, model, status), self._request_s.labels(route, api)
        )

    def guard_checked(self, model: str, stage: str, result: str) -> None:
        """A moderation model has seen a prompt or a part of an output."""
        self._guard_checks.labels(model, stage, result).inc()

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

    def model_slept(self, model: str, freed_bytes: int) -> None:
        """The model sleeps."""
        self._models.sleeping.labels(model).set(1)
        self._models.freed_bytes.labels(model).set(freed_bytes)

    def model_woke(self, model: str, seconds: float) -> None:
        """A wake of the model took this long."""
        self._models.wake_s.labels(model).observe(seconds)

    def model_left(self, model: str) -> None:
        """The model sleeps no more."""
        self._models.sleeping.labels(model).set(0)
        self._models.freed_bytes.labels(model).set(0)

    def engine_stalled(self, model: str, phase: StallPhase) -> None:
        self.of(model).stalls[phase].inc()

    def slow_client_disconnected(self) -> None:
        """A stream was ended because its client did not read."""
        self._slow_clients.inc()

    def media_fetched(self, result: str) -> None:
        """A URL in a request was fetched, or not: see the metric's help for the results."""
        self._media_fetches.labels(result).inc()

    def timed_out(self, kind: TimeoutKind) -> None:
        self._timeouts.labels(kind).inc()

    def lagged(self, seconds: float) -> None:
        """Observes a delay of the event loop."""
        self._lag_s.observe(seconds)

    def set_callback(self, spec: MetricSpec, read: Callable[[], float]) -> None:
        """`read` returns the value at each scrape; until it is set, 0."""
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
class _CallbackValues(Collector):
    """Counters and gauges whose values are kept outside of this registry."""

    callbacks: Mapping[str, Callable[[], float]]  # name -> reads the value

    def collect(self) -> Iterable[Metric]:
        for spec in _CALLBACKS:
            family = GaugeMetricFamily if spec.kind == "gauge" else CounterMetricFamily
            read = self.callbacks.get(spec.name, int)  # int() is 0
            yield family(spec.name, spec.help, value=read())


@dataclass(frozen=True, slots=True, eq=False)
class _OutputTokens(Collector):
    """Output tokens by model, those of running generations included."""

    generations: dict[GenerationLabels, GenerationMetrics]

    def collect(self) -> Iterable[Metric]:
        spec = catalog.OUTPUT_TOKENS
        metric = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
        for labels, generations in self.generations.copy().items():  # the event loop may add one
            metric.add_metric(labels, generations.output_tokens())
        yield metric
