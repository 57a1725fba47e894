"""Calls the endpoints with fixed paths without FastAPI's router."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class FixedRoute(Protocol):
    """A route that takes a request and returns a response, without FastAPI's own handling."""

    @property
    def endpoint(self) -> Callable[[Request], Coroutine[Any, Any, Response]]: ...


class DirectDispatch:
    """Middleware that calls the endpoints with fixed paths without FastAPI's router.

    The router handles all others, and errors. It takes 50 us, mostly for exit stacks that these
    endpoints never use (docs/decisions/0009-request-path.md).
    """

    def __init__(self, app: ASGIApp, *, routes: Mapping[tuple[str, str], FixedRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = self._routes.get((scope["method"], scope["path"]))
        if route is None:
            await self._app(scope, receive, send)
            return
        response = await route.endpoint(Request(scope, receive))
        await response(scope, receive, send)
