"""The middleware around the routes, in its order."""

from functools import partial

from starlette.middleware import Middleware
from starlette.types import Scope

from openai_frontend.app.metrics import server_load
from openai_frontend.auth.api_keys import RouteScope
from openai_frontend.auth.authenticator import Authenticator
from openai_frontend.auth.authorization import Authorizer
from openai_frontend.auth.restrictions import restrictions
from openai_frontend.config import restricted_groups
from openai_frontend.config.settings import Settings
from openai_frontend.lifespan import AppState
from openai_frontend.middleware.authentication import Authentication
from openai_frontend.middleware.chosen_prefill_peer import ChosenPrefillPeer
from openai_frontend.middleware.content_encoding import ContentEncoding
from openai_frontend.middleware.direct_dispatch import DirectDispatch
from openai_frontend.middleware.drain import Draining
from openai_frontend.middleware.error_responses import ErrorResponses
from openai_frontend.middleware.headers import cors
from openai_frontend.middleware.proxy_headers import ProxyHeaders
from openai_frontend.middleware.request_body import BodyLimit, ContentType
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.middleware.request_normalization import RequestNormalization
from openai_frontend.middleware.restricted_apis import RestrictedApis
from openai_frontend.middleware.telemetry import (
    RequestMetrics,
    RequestRecords,
    Telemetry,
    log_request,
)
from openai_frontend.middleware.trusted_hosts import LOCAL, TrustedHosts
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.restricted_routes import group_of
from openai_frontend.routers.routing import RouteTable
from openai_frontend.runtime.loopback import is_loopback
from openai_frontend.tracing import RequestTracing

# The paths that take forms with a file, and the room that the other fields may take
_FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")
_FORM_FIELDS_BYTES = 1024 * 1024


def gateway_middleware(settings: Settings, state: AppState, routes: RouteTable) -> list[Middleware]:
    """The middleware of all routes, outermost first."""
    public = public_scopes(settings)
    return [
        *_proxies(settings),
        Middleware(RequestId),
        *_telemetry(request_records(settings, state.tracing)),
        Middleware(RequestNormalization, root_path=settings.root_path),
        Middleware(
            RequestMetrics,
            metrics=state.metrics,
            fixed=routes.fixed,
            load_report=partial(_load_header, state, "metrics" in public),
        ),
        *_hosts(settings, state.authenticator),
        *cors(settings.cors_origins),
        Middleware(Draining, drain_state=state.drain_state, route_scope_of=routes.scope_of),
        *_restricted(settings, routes),
        *_access(state.authenticator, routes, public),
        Middleware(ErrorResponses),
        Middleware(ContentEncoding, max_body_bytes=settings.max_body_bytes),
        *_body_limits(settings, state, routes),
        *_dispatch(state, routes),
    ]


def transfer_middleware(
    settings: Settings, state: AppState, routes: RouteTable
) -> list[Middleware]:
    """The middleware of a prefill server's listener, outermost first."""
    return [
        Middleware(RequestId),
        Middleware(RequestMetrics, metrics=state.metrics, fixed=routes.fixed),
        Middleware(Draining, drain_state=state.drain_state, route_scope_of=routes.scope_of),
        *_access(state.authenticator, routes, frozenset()),
        Middleware(ErrorResponses),
        Middleware(ContentEncoding, max_body_bytes=settings.max_body_bytes),
        Middleware(ContentType, route_scope_of=routes.scope_of),
        Middleware(BodyLimit, max_body_bytes=settings.max_body_bytes, budget=state.body_memory),
        Middleware(DirectDispatch, routes=routes.fixed),
    ]


def _load_header(state: AppState, is_public: bool, scope: Scope, format: str) -> str | None:
    """The load for a caller that could read `/metrics` too; for others, None."""
    principal = current_request().principal
    may_read = principal is not None and principal.may_open("metrics")
    allowed = is_public or state.authenticator is None or may_read
    return server_load(state).header(format) if allowed else None


def request_records(settings: Settings, tracing: RequestTracing | None) -> RequestRecords | None:
    """None if nothing uses records."""
    observers = [log_request] if settings.access_log else []
    if tracing is None and not observers and settings.log_format != "json":
        return None
    return RequestRecords(tracing, observers)


def _telemetry(records: RequestRecords | None) -> list[Middleware]:
    return [] if records is None else [Middleware(Telemetry, records=records)]


def _restricted(settings: Settings, routes: RouteTable) -> list[Middleware]:
    """Empty if no group is restricted."""
    http = restrictions(settings.triton_option, restricted_groups.HTTP)
    openai = restrictions(settings.triton_option, restricted_groups.OPENAI)
    if not http and not openai:
        return []
    return [
        Middleware(
            RestrictedApis,
            route_of=routes.route_of,
            group_of=group_of,
            http=http,
            openai=openai,
        )
    ]


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
