"""Routes whose endpoint takes the request and gives the response, with nothing in between."""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class DirectRoute(APIRoute):
    """FastAPI's route without its reading of parameters and bodies."""

    def get_route_handler(self) -> Endpoint:
        """FastAPI's own hook for routes that do this themselves."""
        return self.endpoint


class Shortcut:
    """Takes a request to its endpoint by method and path alone.

    Whatever is not in the table goes on to FastAPI's router, which knows the rest: paths with
    parameters, refusals. The way through it takes 50 us, most of it for exit stacks that close
    what these endpoints never open (docs/decisions/0011).
    """

    def __init__(self, app: ASGIApp, *, endpoints: Mapping[tuple[str, str], Endpoint]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        endpoint = self._endpoints.get((scope["method"], scope["path"]))
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        response = await endpoint(Request(scope, receive))
        await response(scope, receive, send)


def endpoints(routes: Iterable[BaseRoute]) -> dict[tuple[str, str], Endpoint]:
    """Method and path -> endpoint, of the direct routes without parameters."""
    return {
        (method, route.path): route.endpoint
        for route in routes
        if isinstance(route, DirectRoute) and not route.param_convertors
        for method in route.methods
    }
