"""The methods of grpc.health.v1.Health: whether the server is ready."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from openai_frontend.errors import ModelNotFound, ServerOverloaded
from openai_frontend.kserve.grpc.calls import RpcCalls, StreamCall, parsed
from openai_frontend.kserve.grpc.messages import HEALTH, INFERENCE, methods
from openai_frontend.request_context.context import RequestContext

_POLL_S = 1.0
MAX_WATCHES = 256  # they need no key and never end: the server's other calls must not be taken
_SERVICES = ("", HEALTH, INFERENCE)  # "" is the whole server


class HealthService:
    """Answers the calls. Each method has the name of its call and gets message and context."""

    def __init__(self, is_ready: Callable[[], bool], calls: RpcCalls) -> None:
        self._is_ready = is_ready
        self._calls = calls
        self._watches = 0
        self._response = methods(HEALTH)["Check"].response

    def handlers(self) -> Mapping[str, Callable[..., Any]]:
        """The handler of each method, by name."""
        table = methods(HEALTH)
        return {
            "Check": self._calls.unary(table["Check"], "health", self.Check),
            "Watch": self._calls.streaming(table["Watch"], "health", self.Watch),
        }

    async def Check(self, request: Any, _context: RequestContext) -> Any:
        if request.service not in _SERVICES:
            raise ModelNotFound(f"unknown service '{request.service[:128]}'", param="service")
        return self._status(request.service)

    async def Watch(self, data: bytes, _call: StreamCall) -> AsyncGenerator[bytes, None]:
        """A status at once, and again whenever it changes, until the server drains."""
        request = parsed(methods(HEALTH)["Watch"], data)
        if self._watches >= MAX_WATCHES:
            raise ServerOverloaded(f"{MAX_WATCHES} calls watch the server's health already")
        self._watches += 1
        last: bytes | None = None
        try:
            while True:
                status: bytes = self._status(request.service).SerializeToString()
                if status != last:
                    last = status
                    yield status
                if self._calls.draining:  # the end of the process waits for running calls
                    return
                await asyncio.sleep(_POLL_S)
        finally:
            self._watches -= 1

    def _status(self, service: str) -> Any:
        if service not in _SERVICES:
            return self._response(status="SERVICE_UNKNOWN")
        return self._response(status="SERVING" if self._is_ready() else "NOT_SERVING")
