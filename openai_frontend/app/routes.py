"""The routes, and the serving objects behind them."""

import logging
import os
from functools import partial

from fastapi import APIRouter, FastAPI

from openai_frontend.app.metrics import families
from openai_frontend.app.middleware import public_scopes
from openai_frontend.auth.api_keys import RouteScope
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
from openai_frontend.kserve.trace_file_settings import TraceFileSettings
from openai_frontend.kserve.trace_settings import TraceSettings
from openai_frontend.lifespan import AppState
from openai_frontend.media.modalities import ENGINE_LIMITS
from openai_frontend.models.lora_management import LoRAManagement
from openai_frontend.models.management import ModelManagement
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.prompting import token_bytes
from openai_frontend.routers.audio import speech_router, transcription_router
from openai_frontend.routers.described_model import MediaLimits
from openai_frontend.routers.docs import docs_page_router, docs_router
from openai_frontend.routers.invocations import Invocations, invocations_router
from openai_frontend.routers.models import lora_router, management_router, models_router
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
from openai_frontend.routers.routing import all_routes
from openai_frontend.routers.sleep import sleep_router
from openai_frontend.routers.stateful_sessions import StatefulSessions
from openai_frontend.routers.streaming import StreamLimits
from openai_frontend.routers.text import text_routers
from openai_frontend.routers.tokenization import tokenization_router
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.classification import Classification
from openai_frontend.serving.conversation import Conversations
from openai_frontend.serving.dialects.completions import Completions
from openai_frontend.serving.embeddings import Embeddings
from openai_frontend.serving.guard import Guards
from openai_frontend.serving.moderation import Moderations, Moderator
from openai_frontend.serving.pooling import Pooler
from openai_frontend.serving.pooling_inputs import PoolingInputs
from openai_frontend.serving.pooling_tasks import PoolingTasks
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
from openai_frontend.tracing import RequestTracing, Tracing
from openai_frontend.tracing.file_tracing import FileTracing
from openai_frontend.triton import MappedFile, Server, StreamWriter, json_member

logger = logging.getLogger(__name__)


def add_routes(app: FastAPI, settings: Settings, state: AppState) -> None:
    """Add all routes of the gateway."""
    _add_inference_routes(app, settings, state)
    include(app, metrics_router(partial(families, state), state.server.metrics))
    guarded = state.authenticator is not None
    _add_pages(app, settings, state.registry, public_scopes(settings) if guarded else None)
    _add_hosting(app, state.server, settings)


def include(app: FastAPI, router: APIRouter) -> None:
    """Take over the router's routes; FastAPI's `include_router` builds each one a second time."""
    app.router.routes.extend(router.routes)


def _add_inference_routes(app: FastAPI, settings: Settings, state: AppState) -> None:
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
        include(app, router)
    include(app, tokenization_router(registry, Tokenization(limits, policy, media)))
    vocabulary = settings.tiktoken_vocabulary
    tiktoken = None if vocabulary is None else token_bytes.read_tiktoken(vocabulary)
    inputs = PoolingInputs(limits, policy, media=media, tiktoken=tiktoken)
    embeddings = Embeddings(inputs, policy, admission)
    tasks = PoolingTasks(inputs, policy, admission)
    classification = Classification(inputs, policy, admission)
    moderations = Moderations(limits, policy, admission)
    vectors = embedding_routes(embeddings, tasks)
    vectors += classifier_routes(classification, moderations)
    include(app, vector_router(registry, vectors))
    scoring = Scoring(limits, policy, admission)
    include(app, rerank_router(registry, Reranking(policy, scoring)))
    include(app, score_router(registry, scoring))
    codec, observer = state.codec, state.metrics.audio
    audio = AudioReader(_audio_limits(settings), codec, observer)
    transcriptions = Transcriptions(policy, admission, audio)
    memory = state.audio_memory
    include(app, transcription_router(registry, transcriptions, streams, memory))
    speech = Speech(policy, admission, codec, observer)
    include(app, speech_router(registry, speech, streams, memory))
    _add_operators_routes(app, settings, state, policy, streams)


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
    include(app, management_router(registry, management, policy, limits))
    include(app, sleep_router(registry, management, policy, limits))
    adapters = LoRAManagement(registry, enabled=settings.enable_model_management)
    include(app, lora_router(adapters, policy, limits))
    include(app, models_router(registry, limits))
    include(app, health_router(lambda: drain_state.ready, registry.is_ready, registry.unready))
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
        trace_settings=_trace_settings(state.tracing),
        shared_memory=shared_memory,
    )
    app.state.kserve = services  # gRPC serves it too
    if settings.enable_kserve:
        include(app, kserve_router(services, streams))


def _trace_settings(tracing: RequestTracing | None) -> TraceSettings | TraceFileSettings:
    if isinstance(tracing, FileTracing):
        return TraceFileSettings(tracing)
    return TraceSettings(tracing if isinstance(tracing, Tracing) else None)


def _add_pages(
    app: FastAPI,
    settings: Settings,
    registry: ModelRegistry,
    public_scopes: frozenset[RouteScope] | None,
) -> None:
    """Add the API's description, and the pages for browsers."""
    document = Document(app, public_scopes=public_scopes, root_path=settings.root_path)
    include(app, docs_router(document, registry))
    pages = settings.web_pages != "none"
    if pages:
        include(app, docs_page_router())
    include(app, root_router(settings.root_path, pages=pages))


def _add_hosting(app: FastAPI, server: Server, settings: Settings) -> None:
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
    include(app, invocations_router(invocations, ready, health_route, predict_route))


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


def _text_seals(settings: Settings) -> TextSeals:
    """With the secret of the cache salts, which replicas of a deployment share."""
    secret = settings.cache_salt_secret or settings.transfer_key
    if secret is not None and not can_encrypt():
        logger.warning("reasoning is not encrypted for clients: package=cryptography extra=jwt")
        return TextSeals()
    return TextSeals(secret)


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
