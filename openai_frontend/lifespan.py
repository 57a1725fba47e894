"""Builds the state of the application from the settings, starts it and stops it."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from openai_frontend.admission.memory_budget import MemoryBudget
from openai_frontend.admission.queue import ConcurrencyLimits
from openai_frontend.auth.authenticator import Authenticator, build_authenticator
from openai_frontend.config.model_options import EVERY_MODEL
from openai_frontend.config.settings import Settings
from openai_frontend.config.trace_options import file_traces
from openai_frontend.errors import GatewayError, ModelUnavailable
from openai_frontend.logs.handler import dropped_lines
from openai_frontend.media.audio import check_reply
from openai_frontend.media.fetch import MediaFetcher, internet
from openai_frontend.media.pool import WorkerPool
from openai_frontend.metrics import catalog
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.middleware.drain import DrainState
from openai_frontend.models.loader import ModelLoader
from openai_frontend.models.on_demand import OnDemandLimits, OnDemandLoader
from openai_frontend.models.prefill_peers import PrefillPeers
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.remote_prefill import RemotePrefill
from openai_frontend.models.sleep import ModelSleep
from openai_frontend.models.supervisor import EngineSupervisor
from openai_frontend.prefix_cache.salts import CacheSalts, secret_from
from openai_frontend.runtime.background_tasks import supervise
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.tracing import RequestTracing, Tracing
from openai_frontend.tracing.attributes import ServerAddress
from openai_frontend.tracing.file_tracing import FileTracing
from openai_frontend.triton import Server, relay_counts

if TYPE_CHECKING:
    from openai_frontend.object_storage.bucket_copies import BucketCopies

logger = logging.getLogger(__name__)

_REASON_IN_LOG = "not loaded; the core's log has the reason"
_REMOTE_PREFILL_TIMEOUT_S = 30.0  # after which a decode server computes the prompt itself
# Limits for one audio file: 25 minutes of Opus take 10 to 20 s, 150 million samples 600 MiB
_CODEC_TIMEOUT_S, _CODEC_MEMORY_MIB = 60.0, 1024


class Startup:
    """Starts the core and loads its models while the port already listens.

    On failure it sets `failure` and calls `on_failure`, which ends the process.
    """

    def __init__(
        self,
        server: Server,
        registry: ModelRegistry,
        *,
        lora_poll_interval_s: float,
        repository_poll_s: float | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        """`repository_poll_s` is None unless the repository is polled. `preload` names the models
        to load at start with load on demand.
        """
        self._preload = preload
        self._lora_poll_interval_s = lora_poll_interval_s
        self._repository_poll_s = repository_poll_s
        self._server = server
        self._registry = registry
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None
        # The models that the core loads, if the failure of one is a failure of the start
        self.required: Sequence[str] | None = None
        self.on_core: Callable[[], None] = lambda: None  # after engines start

    async def run(self) -> None:
        """Start, then watch adapters and the repository. Returns only if the start failed."""
        try:
            await self._server.start()
            self.on_core()
            self._registry.loading_at_start.update(self._preload)
            await self._registry.refresh()
            self._require_loaded(await self._load_models())
            async with asyncio.TaskGroup() as watchers:
                watch = partial(self._registry.watch_adapters, self._lora_poll_interval_s)
                watchers.create_task(supervise("watch LoRA adapters", watch))
                if self._repository_poll_s is not None:
                    watch = partial(self._registry.watch, self._repository_poll_s)
                    watchers.create_task(supervise("watch model repository", watch))
        except Exception as error:  # noqa: BLE001  the process reports it and exits
            logger.error("startup failed: %s", error)
            self.failure = _without_frames(error)
            self.on_failure()

    async def _load_models(self) -> dict[str, str]:
        """Load as many side by side as the loader allows. Log and return the models that do not
        load, with the reasons; a request for one tries again.
        """
        failures: dict[str, str] = {}
        async with asyncio.TaskGroup() as loads:
            for name in self._preload:
                loads.create_task(self._load_model(name, failures))
        return failures

    async def _load_model(self, name: str, failures: dict[str, str]) -> None:
        try:
            await self._registry.ensure_loaded(name, None)
        except GatewayError as error:
            logger.error("failed to load model %s: %s", name, error.message)
            failures[name] = error.message
        self._registry.loading_at_start.discard(name)

    def _require_loaded(self, failures: Mapping[str, str]) -> None:
        """Raises ModelUnavailable if the server must exit because of a model."""
        if self.required is None:
            return
        # The core's index has no reason for a model without a version that it could load
        absent = set(self.required) - self._registry.loaded_in_core()
        reasons = {**dict.fromkeys(absent, _REASON_IN_LOG), **self._registry.unready(), **failures}
        if absent:
            reasons.pop(EVERY_MODEL, None)
        if reasons:
            texts = (f"{name}: {' '.join(text.split())}" for name, text in sorted(reasons.items()))
            raise ModelUnavailable(f"exit-on-error: models failed to load: {'; '.join(texts)}")


def _without_frames(error: Exception) -> Exception:
    """For an exception that is kept: its frames would keep the core's objects until the interpreter
    ends, and nanobind would report them as leaked.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


@dataclass(frozen=True, kw_only=True)
class AppState:
    """Resources of the application, from its startup to its shutdown."""

    server: Server
    registry: ModelRegistry
    startup: Startup
    metrics: GatewayMetrics
    authenticator: Authenticator | None  # None: no key needed
    on_demand: OnDemandLoader
    sleep: ModelSleep
    drain_state: DrainState
    limiter: ConcurrencyLimiter
    body_memory: MemoryBudget
    audio_memory: MemoryBudget
    tracing: RequestTracing | None  # None: tracing is off
    engine_supervisor: EngineSupervisor
    codec: WorkerPool  # decodes and encodes audio
    media_fetcher: MediaFetcher | None = None  # None: nothing is fetched
    prefill_peers: PrefillPeers | None = None  # None: not a decode server
    bucket_copies: "BucketCopies | None" = None  # None: no model repository is in object storage

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncGenerator[None, None]:
        """The ASGI lifespan: start the background tasks and the core, and stop them."""
        background = [
            self.startup.run(),
            supervise("supervise engines", self.engine_supervisor.watch),
            *(
                supervise("watch keys", partial(each.watch, self.server.heartbeat))
                for each in (self.authenticator.watchers if self.authenticator is not None else ())
            ),
        ]
        if self.prefill_peers is not None:
            background.append(self.prefill_peers.watch())
        tasks = [asyncio.create_task(task) for task in background]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if self.bucket_copies is not None:
                await self.bucket_copies.close()
            await self.on_demand.close()
            if self.prefill_peers is not None:
                await self.prefill_peers.close()
            if self.media_fetcher is not None:
                await self.media_fetcher.close()
            self.registry.close()
            await asyncio.to_thread(self.codec.close)
            await self.server.stop()
            if self.tracing is not None:
                await asyncio.to_thread(self.tracing.close)


def build_state(settings: Settings, server: Server) -> AppState:
    metrics, drain_state = GatewayMetrics(), DrainState()
    if settings.replica_name is not None:
        metrics.name_replica(settings.replica_name)
    peers = _prefill_peers(settings)
    registry = ModelRegistry(
        server,
        _loader(settings, server, metrics, peers),
        options=settings.options_by_model(),
        strict_readiness=settings.strict_readiness,
    )
    limiter = _limiter(settings, drain_state, metrics)
    sleep = _sleep(registry, limiter, metrics)
    on_demand = _on_demand(settings, registry, metrics, sleep)
    limiter.wake = on_demand.begin_wake
    server.heartbeat.on_beat.append(on_demand.check_idle)
    drain_state.on_drain(on_demand.drain)
    supervisor = EngineSupervisor(server, registry, metrics, settings.engine_limits())
    sleep.given_up = lambda: supervisor.given_up
    tracing, authenticator = tracing_of(settings), authenticator_of(settings)
    body_memory, audio_memory = _memory_budgets(settings, metrics)
    server.heartbeat.on_beat.append(metrics.lagged)
    server.unreleased.observers += [limiter, body_memory, registry.uses]
    _count_when_read(metrics, tracing, authenticator)
    return AppState(
        server=server,
        registry=registry,
        startup=_startup(settings, server, registry),
        metrics=metrics,
        authenticator=authenticator,
        on_demand=on_demand,
        sleep=sleep,
        drain_state=drain_state,
        limiter=limiter,
        body_memory=body_memory,
        audio_memory=audio_memory,
        tracing=tracing,
        engine_supervisor=supervisor,
        codec=codec_pool(),
        media_fetcher=_media_fetcher(settings, metrics),
        prefill_peers=peers,
        bucket_copies=_bucket_copies(settings, server, registry, metrics),
    )


def _startup(settings: Settings, server: Server, registry: ModelRegistry) -> Startup:
    polls = settings.model_control_mode == "poll"
    named = [name for name in settings.load_model if name != "*"]
    return Startup(
        server,
        registry,
        lora_poll_interval_s=settings.lora_poll_interval_s,
        repository_poll_s=settings.repository_poll_s if polls else None,
        preload=named if settings.load_on_demand else (),
    )


def _bucket_copies(
    settings: Settings, server: Server, registry: ModelRegistry, metrics: GatewayMetrics
) -> "BucketCopies | None":
    """Copies made before the core reads files. The first ones were made before the start."""
    buckets = settings.buckets()
    if not buckets:
        return None
    from openai_frontend.object_storage.bucket_copies import BucketCopies  # needs the extra

    copies = BucketCopies(buckets, settings.repository_folders())
    metrics.set_callback(catalog.BUCKET_COPY_FAILURES, lambda: copies.failures)
    server.before_poll = copies.update
    registry.copy_from_bucket = copies.update_model
    return copies


def _count_when_read(
    metrics: GatewayMetrics,
    tracing: RequestTracing | None,
    authenticator: Authenticator | None,
) -> None:
    """Metrics whose values other parts of the gateway keep."""
    metrics.set_callback(catalog.FAST_PATH_TOKENS, lambda: relay_counts()["texts"])
    metrics.set_callback(catalog.FAST_PATH_WRITES, lambda: relay_counts()["writes"])
    metrics.set_callback(catalog.LOG_LINES_DROPPED, dropped_lines)
    if tracing is not None:
        metrics.set_callback(catalog.TRACES_DROPPED, lambda: tracing.lost)
    if authenticator is not None and (shared := authenticator.shared_limits) is not None:
        metrics.set_callback(catalog.RATE_LIMIT_STORAGE_FAILURES, lambda: shared.failures)


def _memory_budgets(
    settings: Settings, metrics: GatewayMetrics
) -> tuple[MemoryBudget, MemoryBudget]:
    """For bodies, and for audio: a file of silence has a thousand times its bytes of samples, which
    must not take the place of every client's bodies.
    """
    bodies = MemoryBudget(settings.max_buffered_body_bytes)
    audio = MemoryBudget(
        settings.max_buffered_audio_bytes, what="audio samples", setting="max-buffered-audio-bytes"
    )
    metrics.set_callback(catalog.BUFFERED_BODY_BYTES, lambda: bodies.used_bytes)
    metrics.set_callback(catalog.BUFFERED_AUDIO_BYTES, lambda: audio.used_bytes)
    return bodies, audio


def codec_pool() -> WorkerPool:
    """The processes that decode and encode audio. The first task starts them."""
    return WorkerPool(
        "openai_frontend.media.audio",
        processes=min(4, os.cpu_count() or 1),
        timeout_s=_CODEC_TIMEOUT_S,
        memory_mib=_CODEC_MEMORY_MIB,
        check=check_reply,
    )


def _media_fetcher(settings: Settings, metrics: GatewayMetrics) -> MediaFetcher | None:
    domains = settings.allowed_media_domains
    if not domains:
        return None
    logger.info("images and audio of chats may be fetched by URL: hosts=%s", ",".join(domains))
    return MediaFetcher(domains, internet(), metrics.media_fetched)


def _prefill_peers(settings: Settings) -> PrefillPeers | None:
    if settings.role != "decode" or settings.transfer_key is None:
        return None
    return PrefillPeers(
        settings.prefill_peers, settings.transfer_key, timeout_s=_REMOTE_PREFILL_TIMEOUT_S
    )


def _loader(
    settings: Settings, server: Server, metrics: GatewayMetrics, peers: PrefillPeers | None
) -> ModelLoader:
    remote = None
    if peers is not None:
        smallest = settings.remote_prefill_min_tokens
        remote = RemotePrefill(peers, metrics.prefills, min_tokens=smallest)
    return ModelLoader(
        server,
        tokenizer_threads=settings.tokenizer_threads,
        metrics=metrics,
        role=settings.role,
        remote_prefill=remote,
        cache_salts=_cache_salts(settings),
    )


def _cache_salts(settings: Settings) -> CacheSalts:
    """Decode servers share the caches of prefill servers, and have the same `transfer_key`."""
    secret = settings.cache_salt_secret or settings.transfer_key
    return CacheSalts(None if secret is None else secret_from(secret))


def authenticator_of(settings: Settings) -> Authenticator | None:
    """None if no key is needed. Raises AuthConfigError."""
    return build_authenticator(
        keys_file=settings.keys_file,
        api_keys=[key.sha256 for key in settings.api_key],
        jwks=settings.jwks,
        jwt_issuer=settings.jwt_issuer,
        jwt_audience=settings.jwt_audience,
        rate_limit_storage=settings.rate_limit_storage,
    )


def tracing_of(settings: Settings) -> RequestTracing | None:
    """None if tracing is off. Raises ImportError without the extra `otel`, OSError if the file of
    traces cannot be written, and ValueError for options that contradict each other.
    """
    to_file = file_traces(settings.triton_option, otlp=settings.otlp_endpoint is not None)
    if to_file is not None:
        return FileTracing(to_file)
    if settings.otlp_endpoint is None:
        return None
    from openai_frontend.tracing.exporter import Exporter

    local = settings.unix_socket
    address = ServerAddress(
        host=settings.host if local is None else str(local),
        port=settings.port if local is None else None,
        scheme="http" if settings.tls_certificate is None else "https",
    )
    return Tracing(
        Exporter(settings.otlp_endpoint, address),
        ratio=settings.trace_sample_ratio,
        follows_caller=settings.trace_parent_based,
    )


def _sleep(
    registry: ModelRegistry, limiter: ConcurrencyLimiter, metrics: GatewayMetrics
) -> ModelSleep:
    sleep = ModelSleep(registry, limiter, metrics)
    registry.on_refresh.append(sleep.forget_others)
    return sleep


def _on_demand(
    settings: Settings, registry: ModelRegistry, metrics: GatewayMetrics, sleep: ModelSleep
) -> OnDemandLoader:
    limits = OnDemandLimits(
        models=settings.max_loaded_models,
        memory_bytes=settings.max_model_memory_bytes,
        wait_s=settings.model_load_timeout_s,
        requests=ConcurrencyLimits(
            settings.max_concurrent_requests, settings.queue_size(), settings.queue_timeout_s
        ),
    )
    demand = OnDemandLoader(registry, limits, metrics=metrics, sleep=sleep)
    if settings.load_on_demand or settings.on_demand_models():
        registry.enable_on_demand(demand, every_model=settings.load_on_demand)
    return demand


def _limiter(
    settings: Settings, drain_state: DrainState, metrics: GatewayMetrics
) -> ConcurrencyLimiter:
    limiter = ConcurrencyLimiter(
        settings.max_concurrent_requests,
        max_queue_size=settings.queue_size(),
        queue_timeout_s=settings.queue_timeout_s,
        metrics=metrics,
    )
    drain_state.on_drain(limiter.drain)
    return limiter
