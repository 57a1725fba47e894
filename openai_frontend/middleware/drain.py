"""The state of a shutdown, and moving clients to other servers meanwhile."""

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.auth.api_keys import RouteScope
from openai_frontend.errors import ServerDraining
from openai_frontend.middleware.authentication import RouteScopeOf
from openai_frontend.middleware.error_responses import send_error
from openai_frontend.serving.error_reply import reply_for

# Probes and scrapers need answers until the process exits.
SERVED_WHILE_DRAINING: tuple[RouteScope, ...] = ("health", "metrics")


class DrainState:
    """Shutdown state of the process. Signal handlers change it; routers and middleware read it.

    Serving, then stopping (not ready, but still accepting requests), then draining (rejecting).

    The state never goes back.
    """

    def __init__(self) -> None:
        self.stopping = False
        self.draining = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        """Whether a load balancer should send requests."""
        return not self.stopping

    def begin_stop(self) -> None:
        """Report not ready, while load balancers take the server out of rotation."""
        self.stopping = True

    def drain(self) -> None:
        """Reject new requests from now on."""
        self.stopping = self.draining = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when draining begins."""
        self._callbacks.append(callback)


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

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine itself, since requests pass while the server runs."""
        if not self._drain_state.stopping or scope["type"] != "http":
            return self._app(scope, receive, send)
        closing = _Closing(send).send
        if self._drain_state.draining and self._route_scope_of(scope) not in SERVED_WHILE_DRAINING:
            return send_error(scope, closing, reply_for(ServerDraining()))
        return self._app(scope, receive, closing)


class _Closing:
    """Adds `Connection: close`."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)
