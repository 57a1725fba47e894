"""Builds the gRPC server from the settings and the application whose services it shares."""

from typing import TYPE_CHECKING

from openai_frontend.app import Gateway, public_scopes, request_records
from openai_frontend.auth.authorization import Authorizer
from openai_frontend.auth.restrictions import restrictions
from openai_frontend.config import grpc_options, restricted_groups
from openai_frontend.config.settings import Settings
from openai_frontend.lifespan import AppState

if TYPE_CHECKING:
    from openai_frontend.kserve.grpc.server import GrpcServer, TlsFiles


def build(settings: Settings, app: Gateway) -> "GrpcServer | None":
    """None if gRPC is off. Raises ImportError without the extra `grpc`."""
    port = grpc_options.value(settings.triton_option, "grpc-port")
    if port is None:
        return None
    from openai_frontend.kserve.grpc.calls import CallLimits, RpcCalls
    from openai_frontend.kserve.grpc.health import HealthService
    from openai_frontend.kserve.grpc.server import GrpcOptions, GrpcServer
    from openai_frontend.kserve.grpc.service import InferenceService, restricted_methods

    state: AppState = app.state.gateway
    keys = state.authenticator
    calls = RpcCalls(
        metrics=state.metrics,
        drain_state=state.drain_state,
        body_memory=state.body_memory,
        limits=CallLimits(
            request_timeout_s=settings.request_timeout_s,
            send_timeout_s=settings.send_timeout_s,
            message_timeout_s=settings.body_timeout_s,
            header_forward_pattern=grpc_options.value(
                settings.triton_option, "grpc-header-forward-pattern"
            ),
            restrictions=restricted_methods(
                restrictions(settings.triton_option, restricted_groups.GRPC)
            ),
        ),
        authorizer=None if keys is None else Authorizer(keys.api_keys, public_scopes(settings)),
        records=request_records(settings, state.tracing),
    )
    options = GrpcOptions(
        host=grpc_options.value(settings.triton_option, "grpc-address") or settings.host,
        port=port,
        max_message_bytes=settings.max_body_bytes,
        max_metadata_bytes=settings.max_header_bytes,
        max_calls=settings.max_connections,
        tls=_tls_files(settings),
        reflection=grpc_options.value(settings.triton_option, "grpc-reflection"),
        channel_arguments=grpc_options.channel_arguments(settings.triton_option),
    )
    services = app.state.kserve
    inference = InferenceService(services, calls, settings.stream_buffer_bytes)
    health = HealthService(services.is_ready, calls)
    handlers = (inference.handlers(), health.handlers())
    return GrpcServer(options, *handlers, calls.running, calls.connections)


def _tls_files(settings: Settings) -> "TlsFiles | None":
    """gRPC's own certificate, or else HTTP's; None without both."""
    from openai_frontend.kserve.grpc.server import TlsFiles

    files = grpc_options.tls_files(settings.triton_option)
    if files is not None:
        return TlsFiles(**files)
    if settings.tls_certificate is None:
        return None
    return TlsFiles(
        certificate=settings.tls_certificate,
        key=settings.tls_key,
        client_ca=settings.tls_client_ca,
    )
