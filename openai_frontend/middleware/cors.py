"""What browsers are told of web pages from elsewhere; Starlette's own middleware does it."""

import logging
from collections.abc import Awaitable, Sequence

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware.refusal import send_failure
from openai_frontend.serving.error_reply import http_error

logger = logging.getLogger(__name__)

_TOLD_TO_PAGES = [
    "openai-processing-ms",
    "retry-after",
    "retry-after-ms",
    "x-adjusted-parameters",
    "x-request-id",
    "x-should-retry",
    *(
        f"x-ratelimit-{word}-{kind}"
        for kind in ("requests", "tokens")
        for word in ("limit", "remaining", "reset")
    ),
]


def cors(origins: Sequence[str]) -> list[Middleware]:
    """To stand before the keys, for a browser asks first and has none then.

    Never with cookies: what a page may do, it may do by a key that it knows.
    """
    refusal = Middleware(PreflightRefusal, allowed=origins)
    if not origins:
        return [refusal]
    return [
        refusal,
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            allow_credentials=False,
            expose_headers=_TOLD_TO_PAGES,
        ),
    ]


_REFUSED = http_error(
    403,
    "This server does not allow web pages of this origin to use it (CORS). To allow the origin, "
    "start the server with --cors-origins ORIGIN.",
    "cors_origin_not_allowed",
)
_PREFLIGHT_HEADERS = {b"origin", b"access-control-request-method"}


class PreflightRefusal:
    """Refuses CORS preflight requests of origins that are not allowed, and names the setting."""

    def __init__(self, app: ASGIApp, *, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = allowed
        self._logged = False  # once: whoever reaches the port can send such requests

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """No coroutine of its own: hardly any request is one."""
        if _is_preflight(scope) and not self._is_allowed(Headers(scope=scope)["origin"]):
            return self._refuse(scope, send)
        return self._app(scope, receive, send)

    def _is_allowed(self, origin: str) -> bool:
        return "*" in self._allowed or origin in self._allowed

    async def _refuse(self, scope: Scope, send: Send) -> None:
        if not self._logged:
            self._logged = True
            logger.warning(
                "refused a CORS preflight request of a browser; --cors-origins allows a web page's "
                "origin to use the API"
            )
        await send_failure(scope, send, _REFUSED)


def _is_preflight(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "OPTIONS":
        return False
    return {name for name, _ in scope["headers"]} >= _PREFLIGHT_HEADERS
