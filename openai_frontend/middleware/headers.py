"""Response headers: CORS, security headers, and the name of the replica."""

import logging
from collections.abc import Awaitable, Sequence

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware.error_responses import send_error
from openai_frontend.serving.error_reply import http_error

logger = logging.getLogger(__name__)

_EXPOSED_HEADERS = [
    "openai-processing-ms",
    "retry-after",
    "retry-after-ms",
    "x-adjusted-parameters",
    "x-request-id",
    "x-served-by",
    "x-should-retry",
    *(
        f"x-ratelimit-{word}-{kind}"
        for kind in ("requests", "tokens")
        for word in ("limit", "remaining", "reset")
    ),
]


def cors(origins: Sequence[str]) -> list[Middleware]:
    """To run before authentication: a preflight request has no key.

    Credentials are never allowed: a page gets access by an API key, not by cookies.
    """
    rejection = Middleware(PreflightRejection, allowed=origins)
    if not origins:
        return [rejection]
    return [
        rejection,
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            allow_credentials=False,
            expose_headers=_EXPOSED_HEADERS,
        ),
    ]


_NOT_ALLOWED = http_error(
    403,
    "This server does not allow web pages of this origin to use it (CORS). To allow the origin, "
    "start the server with --cors-origins ORIGIN.",
    "cors_origin_not_allowed",
)
_PREFLIGHT_HEADERS = {b"origin", b"access-control-request-method"}


class PreflightRejection:
    """Rejects CORS preflight requests of origins that are not allowed, and names the setting."""

    def __init__(self, app: ASGIApp, *, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = allowed
        self._logged = False  # log once: anyone who can reach the port can send such requests

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine itself, since almost all requests only pass through."""
        if (
            scope.get("method") == "OPTIONS"
            and _is_preflight(scope)
            and not self._is_allowed(Headers(scope=scope)["origin"])
        ):
            return self._reject(scope, send)
        return self._app(scope, receive, send)

    def _is_allowed(self, origin: str) -> bool:
        return "*" in self._allowed or origin in self._allowed

    async def _reject(self, scope: Scope, send: Send) -> None:
        if not self._logged:
            self._logged = True
            logger.warning(
                "rejected a CORS preflight request; --cors-origins lists the origins whose web "
                "pages may use the API"
            )
        await send_error(scope, send, _NOT_ALLOWED)


def _is_preflight(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "OPTIONS":
        return False
    return {name for name, _ in scope["headers"]} >= _PREFLIGHT_HEADERS


_A_YEAR_S = 365 * 24 * 3600

_SECURITY_HEADERS = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),  # responses are private, and differ each time
]


def response_headers(*, tls: bool, replica_name: str | None = None) -> list[tuple[str, str]]:
    """For uvicorn, which adds them to every response at no cost per request.

    With `tls`, browsers that have connected once use only HTTPS (HSTS).
    """
    hsts = [("strict-transport-security", f"max-age={_A_YEAR_S}")] if tls else []
    replica = [] if replica_name is None else [("x-served-by", replica_name)]
    return _SECURITY_HEADERS + hsts + replica
