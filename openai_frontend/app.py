"""Builds the ASGI application from settings and a Triton server: routes and middleware."""

import logging
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, cast

import fastapi
from fastapi import APIRouter, FastAPI
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Scope

from openai_frontend import __version__
from openai_frontend.auth.api_keys import RouteScope
from openai_frontend.auth.authenticator import Authenticator
from openai_frontend.auth.authorization import Authorizer
from openai_frontend.config import grpc_options
from openai_frontend.config.grpc_options import allows_client_shared_memory
from openai_frontend.config.hosting import Hosting
from openai_frontend.config.settings import Settings
from openai_frontend.config.triton_options import core_log
from openai_frontend.kserve.forwarded_headers import ForwardedHeaders
from openai_frontend.kserve.inference import Inference
from openai_frontend.kserve.log_settings import LogSettings
from openai_frontend.kserve.models import ModelAdmission
from openai_frontend.kserve.repository import Repository
from openai_frontend.kserve.routes import kserve_router
from openai_frontend.kserve.services import KServeServices
from openai_frontend.kserve.shared_memory import SharedMemory
from openai_frontend.kserve.trace_settings import TraceSettings
from openai_frontend.lifespan import AppState, build_state
from openai_frontend.media.modalities import ENGINE_LIMITS
from openai_frontend.metrics import load, vllm
from openai_frontend.metrics.load import ServerLoad
from openai_frontend.middleware.authentication import Authentication
from openai_frontend.middleware.chosen_prefill_peer import ChosenPrefillPeer
from openai_frontend.middleware.content_encoding import ContentEncoding
from openai_frontend.middleware.direct_dispatch import DirectDispatch
from openai_frontend.middleware.drain import Draining, DrainState
from openai_frontend.middleware.error_responses import ErrorResponses, handle_http_exception
from openai_frontend.middleware.headers import cors
from openai_frontend.middleware.proxy_headers import ProxyHeaders
from openai_frontend.middleware.request_body import BodyLimit, ContentType
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.middleware.request_normalization import RequestNormalization
from openai_frontend.middleware.telemetry import (
    RequestMetrics,
    RequestRecords,
    Telemetry,
    log_request,
)
from openai_frontend.middleware.trusted_hosts import LOCAL, TrustedHosts
from openai_frontend.models.lora_management import LoRAManagement
from openai_frontend.models.management import ModelManagement
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.prompting import token_bytes
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.audio import speech_router, transcription_router
from openai_frontend.routers.described_model import MediaLimits
from openai_frontend.routers.docs import docs_page_router, docs_router
from openai_frontend.routers.invocations import Invocations, invocations_router
from openai_frontend.routers.models import (
    lora_router,
    management_router,
    models_router,
)
from openai_frontend.routers.openapi import Document
from openai_frontend.routers.operations import health_router, metrics_router
from openai_frontend.routers.pooling import (
    classifier_routes,
    embedding_routes,
    rerank_router,
    score_router,
    vector_router,
)
from openai_frontend.routers.root import root_router
from openai_frontend.routers.routing import RouteTable, all_routes
from openai_frontend.routers.sleep import sleep_router
from openai_frontend.routers.stateful_sessions import StatefulSessions
from openai_frontend.routers.streaming import StreamLimits
from openai_frontend.routers.text import text_routers
from openai_frontend.routers.tokenization import tokenization_router
from openai_frontend.routers.transfer import transfer_router
from openai_frontend.runtime import compatibility
from openai_frontend.runtime.loopback import is_loopback
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.classification import Classification
from openai_frontend.serving.constraints import plugin
from openai_frontend.serving.conversation import Conversations
from openai_frontend.serving.dialects.completions import Completions
from openai_frontend.serving.embeddings import Embeddings
from openai_frontend.serving.guard import Guards
from openai_frontend.serving.moderation import Moderations, Moderator
from openai_frontend.serving.pooling import Pooler
from openai_frontend.serving.pooling_inputs import PoolingInputs
from openai_frontend.serving.pooling_tasks import PoolingTasks
from openai_frontend.serving.prefill import Prefill
from openai_frontend.serving.request.audio import AudioFileReader, AudioLimits, AudioReader
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.images import ImageLimits, ImageReader
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.request.media import MediaReader
from openai_frontend.serving.request.media_parts import Fetching, NamedMedia
from openai_frontend.serving.request.response_options import StreamDefaults
from openai_frontend.serving.request.sealed_text import TextSeals, can_encrypt
from openai_frontend.serving.scoring import Reranking, Scoring
from openai_frontend.serving.speech import Speech
from openai_frontend.serving.tokenization import Tokenization
from openai_frontend.serving.transcription import Transcriptions
from openai_frontend.tracing import Tracing
from openai_frontend.triton import MappedFile, Server, StreamWriter, json_member

logger = logging.getLogger(__name__)


class Gateway(FastAPI):
    """FastAPI without the middleware that it puts around ours: `ErrorResponses` and `BodyLimit`
    replace it.
    """

    # FastAPI's sets its `root_path`, which this application does not use
    __call__ = Starlette.__call__

    def build_middleware_stack(self) -> ASGIApp:
        whole = super().build_middleware_stack()
        stack: Any = whole
        outermost: Any = self.user_middleware[0].cls
        while type(stack) is not outermost:
            stack = getattr(stack, "app", None)
            if stack is None:
                logger.warning(
                    "FastAPI %s: its middleware cannot be left out, so every request and event"
                    " needs more CPU; supported: %s",
                    fastapi.__version__,
                    compatibility.supported("fastapi"),
                )
                return whole
        return cast(ASGIApp, stack)


# The paths that take forms with a file, and the room that the other fields may take
_FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")
_FORM_FIELDS_BYTES = 1024 * 1024

_ABOUT: Mapping[str, Any] = {
    "title": "openai-frontend",
    "version": __version__,
    "description": (
        "An OpenAI-compatible gateway with Triton Inference Server in its process.\n\n"
        "Set the `base_url` of an OpenAI client to the address of this server with `/v1`. "
        "If the server has API keys, send one as `Authorization: Bearer KEY`.\n\n"
        "Errors have OpenAI's form (KServe's form below `/v2`), and every response has an "
        "`x-request-id`."
    ),
    "license_info": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
    "openapi_url": None,  # replaced by ours; FastAPI's pages load scripts from a CDN
    "docs_url": None,
    "redoc_url": None,
    "separate_input_output_schemas": False,  # responses may omit fields with defaults
    "redirect_slashes": False,
    # Since 0.165, FastAPI would record requests too; `tracing` and `metrics` do. Others ignore it.
    "telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
}


def create_app(settings: Settings, server: Server) -> Gateway:
    """Build the application, whose lifespan starts and stops the server."""
    plugin.installed()  # fail here, not at the first request
    state = build_state(settings, server)
    registry, metrics, authenticator = state.registry, state.metrics, state.authenticator
    routes, public = RouteTable(), public_scopes(settings)
    app = Gateway(
        **_ABOUT,
        lifespan=state.lifespan,
        middleware=[  # outermost first
            *_proxies(settings),
            Middleware(RequestId),
            *_telemetry(request_records(settings, state.tracing)),
            Middleware(RequestNormalization, root_path=settings.root_path),
            Middleware(
                RequestMetrics,
                metrics=metrics,
                fixed=routes.fixed,
                load_report=partial(_load_header, state, "metrics" in public),
            ),
            *_hosts(settings, authenticator),
            *cors(settings.cors_origins),
            Middleware(Draining, drain_state=state.drain_state, route_scope_of=routes.scope_of),
            *_access(authenticator, routes, public),
            Middleware(ErrorResponses),
            Middleware(ContentEncoding, max_body_bytes=settings.max_body_bytes),
            *_body_limits(settings, state, routes),
            *_dispatch(state, routes),
        ],
        exception_handlers={HTTPException: handle_http_exception},
    )
    app.state.gateway = state
    app.state.startup = state.startup
    app.state.drain_state = state.drain_state
    app.state.registry = registry
    app.state.authenticator = authenticator
    _add_routes(app, settings, state)
    _include(app, metrics_router(partial(_families, state), state.server.metrics))
    _add_pages(app, settings, registry, public_scopes=public if authenticator is not None else None)
    _add_hosting(app, state.server, settings)
    app.state.routes = all_routes(app)
    routes.load(app.state.routes)
    return app


def _add_pages(
    app: Gateway,
    settings: Settings,
    registry: ModelRegistry,
    public_scopes: frozenset[RouteScope] | None,
) -> None:
    """Add the API's description, and the pages for browsers."""
    document = Document(app, public_scopes=public_scopes, root_path=settings.root_path)
    _include(app, docs_router(document, registry))
    pages = settings.web_pages != "none"
    if pages:
        _include(app, docs_page_router())
    _include(app, root_router(settings.root_path, pages=pages))


def _add_hosting(app: Gateway, server: Server, settings: Settings) -> None:
    """Add the routes of SageMaker and Vertex AI, which call those that exist already."""
    named = grpc_options.value(settings.triton_option, "vertex-ai-default-model")
    hosting = Hosting.of(os.environ, named)
    by_path = {
        (method, route.path): route.endpoint
        for route in all_routes(app)
        for method in route.methods or ()
    }
    paths = hosting.health_route, hosting.predict_route
    taken = [path for path in paths if ("GET", path) in by_path or ("POST", path) in by_path]

    def default_model() -> str | None:
        ready = {entry.name for entry in server.model_index() if entry.state == "READY"}
        return hosting.default_model or (ready.pop() if len(ready) == 1 else None)

    lifetime_s = hosting.session_lifetime_s
    invocations = Invocations(
        lambda path: by_path.get(("POST", path)),
        default_model,
        hosting.inference_type,
        None if lifetime_s is None else StatefulSessions(lifetime_s),
    )
    ready = by_path["GET", "/health/ready"]
    health_route, predict_route = (None if path in taken else path for path in paths)
    _include(app, invocations_router(invocations, ready, health_route, predict_route))


def create_transfer_app(settings: Settings, state: AppState) -> Gateway:
    """The application of a prefill server's listener for decode servers. It needs keys."""
    if state.authenticator is None:
        raise ValueError("role prefill needs keys")
    routes, drain_state = RouteTable(), state.drain_state
    app = Gateway(
        **_ABOUT,
        middleware=[  # outermost first
            Middleware(RequestId),
            Middleware(RequestMetrics, metrics=state.metrics, fixed=routes.fixed),
            Middleware(Draining, drain_state=drain_state, route_scope_of=routes.scope_of),
            *_access(state.authenticator, routes, frozenset()),
            Middleware(ErrorResponses),
            Middleware(ContentEncoding, max_body_bytes=settings.max_body_bytes),
            Middleware(ContentType, route_scope_of=routes.scope_of),
            Middleware(BodyLimit, max_body_bytes=settings.max_body_bytes, budget=state.body_memory),
            Middleware(DirectDispatch, routes=routes.fixed),
        ],
        exception_handlers={HTTPException: handle_http_exception},
    )
    registry = state.registry
    is_ready = partial(_takes_prompts, drain_state, registry)
    _include(app, transfer_router(registry, Prefill(Admission(state.limiter)), is_ready))
    # In Ray, a prefill replica has no other listener
    _include(app, metrics_router(partial(_families, state), state.server.metrics))
    app.state.routes = all_routes(app)
    routes.load(app.state.routes)
    return app


def _takes_prompts(drain_state: DrainState, registry: ModelRegistry) -> bool:
    return drain_state.ready and registry.is_ready()


def _include(app: FastAPI, router: APIRouter) -> None:
    """Take over the router's routes; FastAPI's `include_router` builds each one a second time."""
    app.router.routes.extend(router.routes)


def _families(state: AppState) -> Iterable[Metric]:
    """The gateway's metrics, and vLLM's metrics for models of the vLLM engine."""
    own, models = state.metrics.registry, state.registry.vllm_models()
    return [
        *own.collect(),
        *load.families(_load(state), models),
        *vllm.families(own, models),
    ]


def _load(state: AppState) -> ServerLoad:
    return ServerLoad.of(
        running=state.limiter.running,
        queued=state.limiter.queued,
        engines=state.registry.engine_gauges(),
    )


def _load_header(state: AppState, is_public: bool, scope: Scope, format: str) -> str | None:
    """The load for a caller that could read `/metrics` too; for others, None."""
    principal = current_request().principal
    may_read = principal is not None and principal.may_open("metrics")
    allowed = is_public or state.authenticator is None or may_read
    return _load(state).header(format) if allowed else None


def request_records(settings: Settings, tracing: Tracing | None) -> RequestRecords | None:
    """None if nothing uses records."""
    observers = [log_request] if settings.access_log else []
    if tracing is None and not observers and settings.log_format != "json":
        return None
    return RequestRecords(tracing, observers)


def _telemetry(records: RequestRecords | None) -> list[Middleware]:
    return [] if records is None else [Middleware(Telemetry, records=records)]


def _access(
    authenticator: Authenticator | None, routes: RouteTable, public: frozenset[RouteScope]
) -> list[Middleware]:
    """Empty if no key is needed."""
    if authenticator is None:
        return []
    return [
        Middleware(
            Authentication,
            authorizer=Authorizer(authenticator.api_keys, public),
            route_scope_of=routes.scope_of,
        )
    ]


def _body_limits(settings: Settings, state: AppState, routes: RouteTable) -> list[Middleware]:
    """A form has room for the largest file and its other fields."""
    largest = max(settings.max_body_bytes, settings.max_audio_bytes + _FORM_FIELDS_BYTES)
    return [
        Middleware(ContentType, route_scope_of=routes.scope_of, forms=_FORMS),
        Middleware(
            BodyLimit,
            max_body_bytes=settings.max_body_bytes,
            budget=state.body_memory,
            larger=dict.fromkeys(_FORMS, largest),
        ),
    ]


def _dispatch(state: AppState, routes: RouteTable) -> list[Middleware]:
    dispatch = Middleware(DirectDispatch, routes=routes.fixed)
    if state.prefill_peers is None:
        return [dispatch]
    addresses = [peer.address for peer in state.prefill_peers.peers]
    return [Middleware(ChosenPrefillPeer, addresses=addresses), dispatch]


def _proxies(settings: Settings) -> list[Middleware]:
    trusted = settings.trusted_proxies
    return [Middleware(ProxyHeaders, trusted=trusted)] if trusted else []


def _hosts(settings: Settings, authenticator: Authenticator | None) -> list[Middleware]:
    """Check Host headers if `allowed_hosts` is set, or on a loopback address without keys and TLS.

    Otherwise every name is accepted: clients of other machines or a proxy are expected, or a web
    page that uses DNS rebinding lacks the key or the certificate.
    """
    if settings.allowed_hosts:
        return [Middleware(TrustedHosts, allowed=settings.allowed_hosts)]
    guarded = authenticator is not None or settings.tls_certificate is not None
    proxied = settings.unix_socket is not None or bool(settings.trusted_proxies)
    if guarded or proxied or not is_loopback(settings.host):
        return []
    return [Middleware(TrustedHosts, allowed=LOCAL, addresses=True)]


def public_scopes(settings: Settings) -> frozenset[RouteScope]:
    """The route scopes that need no key."""
    left_open: dict[RouteScope, bool] = {
        "health": settings.public_health,
        "metrics": settings.public_metrics,
        "docs": settings.web_pages == "public",
    }
    return frozenset({"public", *(area for area, is_open in left_open.items() if is_open)})


def _text_seals(settings: Settings) -> TextSeals:
    """With the secret of the cache salts, which replicas of a deployment share."""
    secret = settings.cache_salt_secret or settings.transfer_key
    if secret is not None and not can_encrypt():
        logger.warning("reasoning is not encrypted for clients: package=cryptography extra=jwt")
        return TextSeals()
    return TextSeals(secret)


def _add_routes(app: FastAPI, settings: Settings, state: AppState) -> None:
    registry = state.registry
    limits = InferenceLimits(
        max_n=settings.max_n,
        max_prompt_tokens=settings.max_prompt_tokens,
        max_output_tokens=settings.max_output_tokens,
    )
    policy = FieldPolicy(settings.unknown_fields)
    admission = Admission(state.limiter)
    defaults = StreamDefaults(
        interval=settings.stream_interval, force_usage=settings.force_include_usage
    )
    media = _media_reader(settings, state)
    conversations = Conversations(
        limits, admission, media=media, stream_defaults=defaults, seals=_text_seals(settings)
    )
    completions = Completions(limits, policy, admission, stream_defaults=defaults)
    streams = StreamLimits(
        writer=StreamWriter,
        buffer_bytes=settings.stream_buffer_bytes,
        send_timeout_s=settings.send_timeout_s,
        ping_interval_s=settings.sse_ping_interval_s,
    )
    guards = Guards(Moderator(limits, Pooler(admission)), state.metrics.guard_checked)
    texts = text_routers(registry, conversations, completions, policy, streams, json_member, guards)
    for router in texts:
        _include(app, router)
    _include(app, tokenization_router(registry, Tokenization(limits, policy, media)))
    vocabulary = settings.tiktoken_vocabulary
    tiktoken = None if vocabulary is None else token_bytes.read_tiktoken(vocabulary)
    inputs = PoolingInputs(limits, policy, media=media, tiktoken=tiktoken)
    embeddings = Embeddings(inputs, policy, admission)
    tasks = PoolingTasks(inputs, policy, admission)
    classification = Classification(inputs, policy, admission)
    moderations = Moderations(limits, policy, admission)
    vectors = embedding_routes(embeddings, tasks)
    vectors += classifier_routes(classification, moderations)
    _include(app, vector_router(registry, vectors))
    scoring = Scoring(limits, policy, admission)
    _include(app, rerank_router(registry, Reranking(policy, scoring)))
    _include(app, score_router(registry, scoring))
    codec, observer = state.codec, state.metrics.audio
    audio = AudioReader(_audio_limits(settings), codec, observer)
    transcriptions = Transcriptions(policy, admission, audio)
    memory = state.audio_memory
    _include(app, transcription_router(registry, transcriptions, streams, memory))
    speech = Speech(policy, admission, codec, observer)
    _include(app, speech_router(registry, speech, streams, memory))
    _add_operators_routes(app, settings, state, policy, streams)


def _media_reader(settings: Settings, state: AppState) -> MediaReader:
    _set_engines_limits(settings)
    named = NamedMedia(settings.max_stored_image_bytes)
    fetcher = state.media_fetcher
    fetching = None if fetcher is None else Fetching(fetcher, state.body_memory)
    return MediaReader(
        ImageReader(_image_limits(settings), state.metrics.images.read, named, fetching),
        AudioFileReader(_audio_limits(settings), state.metrics.audio.read, named, fetching),
    )


def _set_engines_limits(settings: Settings) -> None:
    ENGINE_LIMITS.max_image_pixels = settings.max_image_pixels
    ENGINE_LIMITS.max_audio_seconds = settings.max_audio_seconds


def _image_limits(settings: Settings) -> ImageLimits:
    return ImageLimits(
        max_images=settings.max_images,
        max_image_bytes=settings.max_image_bytes,
        max_image_pixels=settings.max_image_pixels,
        max_stored_image_bytes=settings.max_stored_image_bytes,
    )


def _audio_limits(settings: Settings) -> AudioLimits:
    return AudioLimits(
        max_audio_bytes=settings.max_audio_bytes,
        max_audio_seconds=settings.max_audio_seconds,
        max_audio_files=settings.max_audio_files,
    )


def _add_operators_routes(
    app: FastAPI,
    settings: Settings,
    state: AppState,
    policy: FieldPolicy,
    streams: StreamLimits,
) -> None:
    """Add the routes about models: management, adapters, listing, health and KServe."""
    server, registry, drain_state = state.server, state.registry, state.drain_state
    limits = MediaLimits(images=_image_limits(settings), audio=_audio_limits(settings))
    management = ModelManagement(
        server,
        registry,
        state.sleep,
        state.on_demand,
        enabled=settings.enable_model_management,
        overrides=settings.allow_model_override,
    )
    _include(app, management_router(registry, management, policy, limits))
    _include(app, sleep_router(registry, management, policy, limits))
    adapters = LoRAManagement(registry, enabled=settings.enable_model_management)
    _include(app, lora_router(adapters, policy, limits))
    _include(app, models_router(registry, limits))
    _include(app, health_router(lambda: drain_state.ready, registry.is_ready, registry.unready))
    admission = ModelAdmission(
        server,
        registry.use,
        Admission(state.limiter),
        registry.concurrency_limits,
        registry.cache_salts,
    )
    shared_memory = SharedMemory(
        MappedFile, enabled=allows_client_shared_memory(settings.triton_option)
    )
    services = KServeServices(
        core=server,
        inference=Inference(server, admission, shared_memory),
        repository=Repository(management),
        policy=policy,
        is_ready=lambda: drain_state.ready and registry.is_ready(),
        forwarded_headers=ForwardedHeaders(
            grpc_options.value(settings.triton_option, "http-header-forward-pattern")
        ),
        log_settings=LogSettings(_initial_log(settings), server),
        trace_settings=TraceSettings(state.tracing),
        shared_memory=shared_memory,
    )
    app.state.kserve = services  # gRPC serves it too
    if settings.enable_kserve:
        _include(app, kserve_router(services, streams))


def _initial_log(settings: Settings) -> dict[str, str | int | bool]:
    """Named as in Triton's logging extension."""
    log = core_log(settings.triton_option)
    return {
        "log_file": str(log.file or ""),
        "log_info": log.info,
        "log_warning": log.warning,
        "log_error": log.error,
        "log_verbose_level": log.verbose,
        "log_format": log.format,
    }
