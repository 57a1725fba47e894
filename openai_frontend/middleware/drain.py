"""Sends clients elsewhere once the process is to end. Ends nothing itself."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.auth.scopes import RouteScope
from openai_frontend.drain_state import DrainState
from openai_frontend.errors import ServerDraining
from openai_frontend.middleware.authentication import RouteScopeOf
from openai_frontend.middleware.refusal import send_failure
from openai_frontend.serving.error_reply import reply_for

# Who supervises the process looks on until it is gone.
_ANSWERED_TO_THE_END: tuple[RouteScope, ...] = ("health", "metrics")


class Draining:
    """While the process is leaving, every response closes its connection: the client's next one
    goes to another server. While it drains, requests are refused with 503.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        drain_state: DrainState,
        route_scope_of: RouteScopeOf,
    ) -> None:
        self._app = app
        self._drain_state = drain_state
        self._area_of = route_scope_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._drain_state.stopping or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        closing = _Closing(send).send
        if self._drain_state.draining and self._area_of(scope) not in _ANSWERED_TO_THE_END:
            await send_failure(scope, closing, reply_for(ServerDraining()))
        else:
            await self._app(scope, receive, closing)


class _Closing:
    """Adds the header that ends the connection after this response."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)
