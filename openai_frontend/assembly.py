"""Makes of the settings what lasts as long as the process. Knows no HTTP."""

from openai_frontend.auth.authenticator import Authenticator, build_authenticator
from openai_frontend.lasting import Lasting, Startup
from openai_frontend.life import Life
from openai_frontend.logs.handler import dropped_lines
from openai_frontend.metrics import catalog
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.middleware.body_limit import BodyMemoryBudget
from openai_frontend.models.on_demand import OnDemandLimits, OnDemandLoader
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.supervisor import EngineSupervisor
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.settings import Settings
from openai_frontend.tracing.attributes import ServerAddress
from openai_frontend.tracing.tracing import Tracing
from openai_frontend.triton import Server, relay_counts


def lasting_of(settings: Settings, server: Server) -> Lasting:
    """All of it."""
    metrics, life = GatewayMetrics(), Life()
    registry = ModelRegistry(
        server,
        metrics=metrics,
        options=settings.options_by_model(),
        tokenizer_threads=settings.tokenizer_threads,
        tokenizer_queue=settings.tokenizer_queue,
        strict_readiness=settings.strict_readiness,
    )
    demand = _on_demand(settings, registry) if settings.load_on_demand else None
    polls = settings.model_control_mode == "poll"
    startup = Startup(
        server,
        registry,
        adapters_s=settings.lora_poll_interval_s,
        follow_s=settings.repository_poll_s if polls else None,
        first=[name for name in settings.load_model if name != "*"] if demand else (),
    )
    tracing = tracing_of(settings)
    metrics.set_callback(catalog.FAST_PATH_TOKENS, lambda: relay_counts()["texts"])
    metrics.set_callback(catalog.FAST_PATH_WRITES, lambda: relay_counts()["writes"])
    metrics.set_callback(catalog.LOG_LINES_DROPPED, dropped_lines)
    limiter, bodies = (
        _limiter(settings, life, metrics),
        BodyMemoryBudget(settings.max_buffered_body_bytes),
    )
    server.unreleased.observers += [limiter, bodies, registry.leases]
    if tracing is not None:
        metrics.set_callback(catalog.TRACES_DROPPED, lambda: tracing.lost)
    return Lasting(
        server=server,
        registry=registry,
        startup=startup,
        metrics=metrics,
        keys=authenticator_of(settings),
        demand=demand,
        life=life,
        limiter=limiter,
        bodies=bodies,
        tracing=tracing,
        engines=EngineSupervisor(server, registry, metrics, settings.engine_limits()),
    )


def authenticator_of(settings: Settings) -> Authenticator | None:
    """Who may come in; None: everybody. Raises AuthConfigError."""
    return build_authenticator(
        keys_file=settings.keys_file,
        api_keys=[key.sha256 for key in settings.api_key],
        jwks=settings.jwks,
        jwt_issuer=settings.jwt_issuer,
        jwt_audience=settings.jwt_audience,
    )


def tracing_of(settings: Settings) -> Tracing | None:
    """Where requests are traced to; None: nowhere. ImportError without the extra `otel`."""
    if settings.otlp_endpoint is None:
        return None
    from openai_frontend.tracing.exporter import Exporter

    local = settings.unix_socket
    address = ServerAddress(
        host=settings.host if local is None else str(local),
        port=settings.port if local is None else None,
        scheme="http" if settings.tls_certificate is None else "https",
    )
    tracing = Tracing(Exporter(settings.otlp_endpoint, address))
    tracing.set_sampling(
        ratio=settings.trace_sample_ratio, follows_caller=settings.trace_parent_based
    )
    return tracing


def _on_demand(settings: Settings, registry: ModelRegistry) -> OnDemandLoader:
    limits = OnDemandLimits(
        models=settings.max_loaded_models,
        memory_bytes=settings.max_model_memory_bytes,
        wait_s=settings.model_load_timeout_s,
        retry_s=settings.model_load_backoff_s,
    )
    demand = OnDemandLoader(registry, limits)
    registry.enable_on_demand(demand)
    return demand


def _limiter(settings: Settings, life: Life, metrics: GatewayMetrics) -> ConcurrencyLimiter:
    limiter = ConcurrencyLimiter(
        settings.max_concurrent_requests,
        max_queue_size=settings.max_queue_size,
        queue_timeout_s=settings.queue_timeout_s,
        metrics=metrics,
    )
    life.at_drain(limiter.drain)
    return limiter
