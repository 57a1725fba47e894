"""Counts every request by its route, its model in Triton and its status, and why it was refused.
Changes nothing.
"""

from collections.abc import Container
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.metrics.gateway import GatewayMetrics

_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
NOWHERE = "none"  # the route of a request that no address of ours has taken


class RequestMetrics:
    """Sees the answer that leaves, failures' too; so it stands outside of what makes them."""

    def __init__(
        self, app: ASGIApp, *, metrics: GatewayMetrics, fixed: Container[tuple[str, str]]
    ) -> None:
        """`fixed`: method and path of the addresses without parameters, which no router names."""
        self._app = app
        self._metrics = metrics
        self._fixed = fixed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics = self._metrics
        answer = _Answer(send, metrics)
        asks_for_work = scope["method"] == "POST"
        if asks_for_work:
            metrics.at_work.inc()
        begun_s = perf_counter()
        try:
            await self._app(scope, receive, answer.send)
        finally:
            if asks_for_work:
                metrics.at_work.dec()
            if answer.streams:
                metrics.streams.dec()
            seconds = perf_counter() - begun_s
            self._count(scope, answer.status, seconds)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        state = scope["state"]
        model = state.get("model_name", "")
        route = state["route"] = self._route(scope)
        self._metrics.answered(route, model, status, seconds)
        if "rejection" in state:
            self._metrics.rejected(model, state["rejection"])

    def _route(self, scope: Scope) -> str:
        """As the route spells it: what a client writes is no label."""
        if (scope["method"], scope["path"]) in self._fixed:
            return str(scope["path"])
        return getattr(scope.get("route"), "path", NOWHERE)


class _Answer:
    """499 for a client that went away before its answer began."""

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
