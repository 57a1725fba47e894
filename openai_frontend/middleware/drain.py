"""Moves clients to other servers while this one shuts down."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.auth.keys import RouteScope
from openai_frontend.drain_state import DrainState
from openai_frontend.errors import ServerDraining
from openai_frontend.middleware.authentication import RouteScopeOf
from openai_frontend.middleware.error_responses import send_error
from openai_frontend.serving.error_reply import reply_for

# Probes and scrapers need answers until the process exits.
_SERVED_WHILE_DRAINING: tuple[RouteScope, ...] = ("health", "metrics")


class Draining:
    """During shutdown, closes connections after their response; while draining, answers 503."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        drain_state: DrainState,
        route_scope_of: RouteScopeOf,
    ) -> None:
        self._app = app
        self._drain_state = drain_state
        self._route_scope_of = route_scope_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._drain_state.stopping or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        closing = _Closing(send).send
        if self._drain_state.draining and self._route_scope_of(scope) not in _SERVED_WHILE_DRAINING:
            await send_error(scope, closing, reply_for(ServerDraining()))
        else:
            await self._app(scope, receive, closing)


class _Closing:
    """Adds `Connection: close`."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)
