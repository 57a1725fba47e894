"""Requires an API key, with the scope of the route that will answer.

Denies by default: paths without a route, and routes without a scope, also require a key. Wraps
`ErrorResponses`, so that error responses have rate-limit headers too.
"""

import logging
import math
from collections.abc import Callable, Iterable
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.auth.api_keys import LIMITED, RouteScope
from openai_frontend.auth.authorization import Authorizer
from openai_frontend.auth.rate_limit import RateLimiter, RateLimitStatus
from openai_frontend.errors import GatewayError, NotAuthenticated, RateLimited
from openai_frontend.middleware.error_responses import send_error
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.error_reply import reply_for

logger = logging.getLogger(__name__)

RouteScopeOf = Callable[[Scope], RouteScope | Literal["nowhere"] | None]


class Authentication:
    """Sets the principal of the request's context: None without a key, on a public route."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authorizer: Authorizer,
        route_scope_of: RouteScopeOf,
    ) -> None:
        self._app = app
        self._authorizer = authorizer
        self._route_scope_of = route_scope_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the server speaks nothing else
            return
        route_scope = self._route_scope_of(scope)
        try:
            principal = self._authorizer.authorize(scope["headers"], route_scope)
        except GatewayError as error:
            await _reject(error, scope, send)
            return
        context = current_request()
        context.principal, context.is_anonymous = principal, principal is None
        if principal is not None and route_scope in LIMITED:
            await self._rate_limited(principal.rate_limiter, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _rate_limited(
        self, rate_limiter: RateLimiter, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if rate_limiter.has_rate_limits:
            send = RateLimitHeaders(rate_limiter, send).send
        try:
            await current_request().begin_limited(rate_limiter)
        except RateLimited as error:
            await _reject(error, scope, send)
            return
        await self._app(scope, receive, send)


async def _reject(error: GatewayError, scope: Scope, send: Send) -> None:
    """Requests without a valid key are logged at DEBUG, so that they cannot fill the log."""
    level = logging.DEBUG if isinstance(error, NotAuthenticated) else logging.INFO
    request_id = current_request().request_id
    logger.log(level, "request %s rejected: %s", request_id, error.message)
    await send_error(scope, send, reply_for(error))


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
