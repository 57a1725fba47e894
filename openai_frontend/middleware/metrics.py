"""Counts requests by route, model and status, and rejections by reason."""

from collections.abc import Container
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.metrics.gateway import GatewayMetrics

_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
NO_ROUTE = "none"  # label for requests that no route matches


class RequestMetrics:
    """Wraps everything that answers, so that it also counts error responses."""

    def __init__(
        self, app: ASGIApp, *, metrics: GatewayMetrics, fixed: Container[tuple[str, str]]
    ) -> None:
        """`fixed`: method and path of routes without parameters, which bypass the router."""
        self._app = app
        self._metrics = metrics
        self._fixed = fixed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics = self._metrics
        response = _StatusRecorder(send, metrics)
        is_post = scope["method"] == "POST"
        if is_post:
            metrics.at_work.inc()
        started_s = perf_counter()
        try:
            await self._app(scope, receive, response.send)
        finally:
            if is_post:
                metrics.at_work.dec()
            if response.streams:
                metrics.streams.dec()
            seconds = perf_counter() - started_s
            self._count(scope, response.status, seconds)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        state = scope["state"]
        model = state.get("model_name", "")
        route = state["route"] = self._route(scope)
        self._metrics.answered(route, model, status, seconds)
        if "rejection" in state:
            self._metrics.rejected(model, state["rejection"])

    def _route(self, scope: Scope) -> str:
        """The route's path template: text from a client must not become a label."""
        if (scope["method"], scope["path"]) in self._fixed:
            return str(scope["path"])
        return getattr(scope.get("route"), "path", NO_ROUTE)


class _StatusRecorder:
    """The status is 499 if the client disconnects before the response starts."""

    def __init__(self, send: Send, metrics: GatewayMetrics) -> None:
        self._send = send
        self._metrics = metrics
        self.status = 499
        self.streams = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.streams = _EVENTS in message["headers"]
            if self.streams:
                self._metrics.streams.inc()
        await self._send(message)
