"""Requires an API key, with the scope of the route that will answer.

Denies by default: paths without a route, and routes without a scope, also require a key. Wraps
`ErrorResponses`, so that error responses have rate-limit headers too.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.auth.api_keys import REQUIRED_SCOPE, ApiKeys, Principal, RouteScope
from openai_frontend.auth.rate_limit import RateLimiter, RateLimitStatus, Reservation
from openai_frontend.errors import GatewayError, NotAuthenticated, NotPermitted, RateLimited
from openai_frontend.middleware.error_responses import send_error
from openai_frontend.request_context.context import current_request
from openai_frontend.runtime import html_page
from openai_frontend.serving.error_reply import reply_for

logger = logging.getLogger(__name__)

RouteScopeOf = Callable[[Scope], RouteScope | Literal["nowhere"] | None]

# Headers for keys in other APIs; read only if there is no Authorization header.
_OTHER_HEADERS = (b"x-api-key", b"api-key")

_NO_KEY = (
    "You did not provide an API key. Send it in the header Authorization, as 'Bearer' and the key."
)


_DOCS_NEED_A_KEY = """\
<p>This server requires an API key, also for its documentation, and a browser sends none.</p>
<ul>
<li>To read the documentation here, start the server with <code>--public-docs</code>. The page then
needs no key and names the models; its button <em>Authorize</em> takes a key to try requests.</li>
<li>To read it as a file: <code>curl -H "Authorization: Bearer $OPENAI_API_KEY"</code> and the
address of <code>openapi.json</code>.</li>
</ul>
"""


def _page(error: GatewayError, route_scope: str | None, scope: Scope) -> bytes | None:
    """The page for a browser that opens the documentation without a key."""
    headers = scope["headers"]
    by_browser = any(name == b"accept" and b"text/html" in value for name, value in headers)
    if route_scope == "docs" and by_browser and isinstance(error, NotAuthenticated):
        return html_page.page("API key required", _DOCS_NEED_A_KEY)
    return None


class Authentication:
    """Sets the principal of the request's context: None without a key, on a public route."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: ApiKeys,
        route_scope_of: RouteScopeOf,
        public_scopes: Collection[RouteScope],
    ) -> None:
        self._app = app
        self._keys = keys
        self._route_scope_of = route_scope_of
        self._public_scopes = public_scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the server speaks nothing else
            return
        route_scope = self._route_scope_of(scope)
        try:
            principal = self._authorize(scope, route_scope)
        except GatewayError as error:
            await _reject(error, scope, send, page=_page(error, route_scope, scope))
            return
        context = current_request()
        context.principal, context.is_anonymous = principal, principal is None
        if principal is not None and route_scope == "inference":
            await self._rate_limited(principal.rate_limiter, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _authorize(
        self, scope: Scope, route_scope: RouteScope | Literal["nowhere"] | None
    ) -> Principal | None:
        """Raises NotAuthenticated or NotPermitted."""
        if route_scope in self._public_scopes:
            with contextlib.suppress(NotAuthenticated):
                return self._keys.authenticate(_secret(scope["headers"]))
            return None
        principal = self._keys.authenticate(_secret(scope["headers"]))
        if route_scope is None:
            raise NotPermitted("No API key grants access to this path.")
        if route_scope != "nowhere":  # the router answers 404 for it
            principal.require(REQUIRED_SCOPE[route_scope])
        return principal

    async def _rate_limited(
        self, rate_limiter: RateLimiter, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """The request counts as running until its response has ended and Triton has released it."""
        if rate_limiter.has_rate_limits:
            send = RateLimitHeaders(rate_limiter, send).send
        try:
            await rate_limiter.begin()
        except RateLimited as error:
            await _reject(error, scope, send)
            return
        context, reservation = current_request(), Reservation(rate_limiter)
        context.reservation = reservation
        context.deferred_release = reservation.deferred_release
        try:
            await self._app(scope, receive, send)
        finally:
            reservation.when_released(reservation.release)
            reservation.when_released(rate_limiter.end)


async def _reject(
    error: GatewayError, scope: Scope, send: Send, *, page: bytes | None = None
) -> None:
    """Requests without a valid key are logged at DEBUG, so that they cannot fill the log."""
    level = logging.DEBUG if isinstance(error, NotAuthenticated) else logging.INFO
    request_id = current_request().request_id
    logger.log(level, "request %s rejected: %s", request_id, error.message)
    reply = reply_for(error)
    if page is not None:
        reply = replace(reply, body=page, headers={**reply.headers, **html_page.HEADERS})
    await send_error(scope, send, reply)


class RateLimitHeaders:
    """Adds the state of the key's limits when the response starts."""

    def __init__(self, rate_limiter: RateLimiter, send: Send) -> None:
        self._rate_limiter = rate_limiter
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ())]
            for status in self._rate_limiter.statuses():
                headers += _headers(status)
            message["headers"] = headers
        await self._send(message)


_NAMES = {
    kind: tuple(f"x-ratelimit-{word}-{kind}".encode() for word in ("limit", "remaining", "reset"))
    for kind in ("requests", "tokens")
}


def _headers(status: RateLimitStatus) -> Iterable[tuple[bytes, bytes]]:
    limit, remaining, reset = _NAMES[status.kind]
    return (
        (limit, b"%d" % status.limit),
        (remaining, b"%d" % status.remaining),
        (reset, _duration(status.reset_s)),
    )


def _duration(seconds: float) -> bytes:
    """In OpenAI's format: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return b"%dms" % math.ceil(seconds * 1000)
    if seconds < 60:
        return b"%gs" % (math.ceil(seconds * 1000) / 1000)
    return b"%dm%ds" % divmod(math.ceil(seconds), 60)


def _secret(headers: Collection[tuple[bytes, bytes]]) -> bytes:
    """The request's API key; `Authorization` takes precedence. Rejects two different ones in
    headers of the same kind: a proxy may have checked the other one.
    """
    authorization = [value for name, value in headers if name == b"authorization"]
    values = authorization or [value for name, value in headers if name in _OTHER_HEADERS]
    if not values:
        raise NotAuthenticated(_NO_KEY)
    if len(values) > 1 and len(set(values)) > 1:
        raise NotAuthenticated("The request has more than one API key. Send one.")
    if not authorization:
        return values[0]
    scheme, _, secret = values[0].partition(b" ")
    if scheme.lower() != b"bearer":
        raise NotAuthenticated(_NO_KEY)
    return secret.strip(b" ")
