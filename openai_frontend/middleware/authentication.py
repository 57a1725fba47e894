"""Lets only those in who have a key, to what the key is for. Decides by the route that will answer.

Denied by default: an address that is no route of ours, or says nothing of itself, opens to nobody
who has no key. Outside of `ErrorResponses`, so that each answer tells how the key stands.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterable
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend import lease
from openai_frontend.auth.api_keys import ApiKeys
from openai_frontend.auth.principal import Principal
from openai_frontend.auth.rate_limit import RateLimiter, RateLimitStatus, Reservation
from openai_frontend.auth.scopes import REQUIRED_SCOPE, RouteScope
from openai_frontend.errors import GatewayError, NotAuthenticated, NotPermitted, RateLimited
from openai_frontend.middleware.refusal import send_failure
from openai_frontend.serving.error_reply import reply_for

logger = logging.getLogger(__name__)

RouteScopeOf = Callable[[Scope], RouteScope | Literal["nowhere"] | None]

# Where clients of other APIs put their key; looked at where there is no Authorization header.
_OTHER_HEADERS = (b"x-api-key", b"api-key")

_NO_KEY = (
    "You did not provide an API key. Send it in the header Authorization, as 'Bearer' and the key."
)


class Authentication:
    """Sets `scope["state"]["principal"]`: None for requests that need no key and have none."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        ring: ApiKeys,
        route_scope_of: RouteScopeOf,
        public_scopes: Collection[RouteScope],
    ) -> None:
        self._app = app
        self._ring = ring
        self._area_of = route_scope_of
        self._public_scopes = public_scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing here speaks anything else
            return
        area = self._area_of(scope)
        try:
            caller = self._admitted(scope, area)
        except GatewayError as refusal:
            await _refuse(refusal, scope, send)
            return
        scope["state"]["principal"] = caller
        if caller is not None and area == "inference":
            await self._counted(caller.quota, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _admitted(
        self, scope: Scope, area: RouteScope | Literal["nowhere"] | None
    ) -> Principal | None:
        """Raises where there is no key, or not one for this; None: there is none, nor need be."""
        if area in self._public_scopes:
            with contextlib.suppress(NotAuthenticated):
                return self._ring.find(_secret(scope["headers"]))
            return None
        caller = self._ring.find(_secret(scope["headers"]))
        if area is None:
            raise NotPermitted("No API key gives access to this address.")
        if area != "nowhere":  # else the router says that there is no such address
            caller.check(REQUIRED_SCOPE[area])
        return caller

    async def _counted(
        self, quota: RateLimiter, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """A request at work, until its answer has ended and Triton has released it."""
        if quota.per_minute:
            send = _Telling(quota, send).send
        try:
            quota.begin()
        except RateLimited as refusal:
            await _refuse(refusal, scope, send)
            return
        reservation = scope["state"]["reservation"] = Reservation(quota)
        lease.current.set(reservation.lease)
        try:
            await self._app(scope, receive, send)
        finally:
            reservation.lease.when_released(reservation.release)
            reservation.lease.when_released(quota.end)


async def _refuse(refusal: GatewayError, scope: Scope, send: Send) -> None:
    """Who has no key can fill no log."""
    level = logging.DEBUG if isinstance(refusal, NotAuthenticated) else logging.INFO
    request_id = scope["state"]["request_id"]
    logger.log(level, "request %s refused: %s", request_id, refusal.message)
    await send_failure(scope, send, reply_for(refusal))


class _Telling:
    """Adds how the key stands when the response starts."""

    def __init__(self, quota: RateLimiter, send: Send) -> None:
        self._quota = quota
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ())]
            for standing in self._quota.standings():
                headers += _headers(standing)
            message["headers"] = headers
        await self._send(message)


_NAMES = {
    kind: tuple(f"x-ratelimit-{word}-{kind}".encode() for word in ("limit", "remaining", "reset"))
    for kind in ("requests", "tokens")
}


def _headers(standing: RateLimitStatus) -> Iterable[tuple[bytes, bytes]]:
    """OpenAI's three for each kind."""
    limit, remaining, reset = _NAMES[standing.kind]
    return (
        (limit, b"%d" % standing.limit),
        (remaining, b"%d" % standing.remaining),
        (reset, _duration(standing.reset_s)),
    )


def _duration(seconds: float) -> bytes:
    """As OpenAI writes it: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return b"%dms" % math.ceil(seconds * 1000)
    if seconds < 60:
        return b"%gs" % (math.ceil(seconds * 1000) / 1000)
    return b"%dm%ds" % divmod(math.ceil(seconds), 60)


def _secret(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key that a request brings. Two of them are none: nobody knows which one a proxy read."""
    authorization, others = [], []
    for name, value in headers:
        if name == b"authorization":
            authorization.append(value)
        elif name in _OTHER_HEADERS:
            others.append(value)
    given = authorization or others
    if not given:
        raise NotAuthenticated(_NO_KEY)
    if len(set(given)) > 1:
        raise NotAuthenticated("More than one API key was sent.")
    if not authorization:
        return given[0]
    scheme, _, secret = given[0].partition(b" ")
    if scheme.lower() != b"bearer":
        raise NotAuthenticated(_NO_KEY)
    return secret.strip(b" ")
