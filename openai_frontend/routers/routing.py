"""Routes whose endpoints take a request and return a response, without FastAPI's own handling."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

import fastapi
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.auth.keys import RouteScope

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class UnsupportedFastAPI(Exception):
    """The installed FastAPI does not list an application's routes in `app.routes`."""


class DirectRoute(APIRoute):
    """FastAPI's route without its reading of parameters and bodies.

    Each subclass names the scope that opens it (docs/authentication.md). A subclass that names
    none opens to no key.
    """

    scope: ClassVar[RouteScope | None] = None

    def get_route_handler(self) -> Endpoint:
        """FastAPI's own hook for routes that do this themselves."""
        return self.endpoint


class InferenceRoute(DirectRoute):
    """What a model answers, and what it reads."""

    scope = "inference"


class ModelsRoute(DirectRoute):
    """Which models there are."""

    scope = "models"


class MetricsRoute(DirectRoute):
    """What operators watch."""

    scope = "metrics"


class AdminRoute(DirectRoute):
    """What changes the server."""

    scope = "admin"


class HealthRoute(DirectRoute):
    """What a supervisor asks, which has no key as a rule."""

    scope = "health"


class DocsRoute(DirectRoute):
    """What the API looks like."""

    scope = "docs"


class PublicRoute(DirectRoute):
    """What everybody may see, with keys or without."""

    scope = "public"


class RouteTable:
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
    """Method and path -> endpoint, of the direct routes without parameters.

    Raises UnsupportedFastAPI if there is none: keys would open no address.
    """
    found = {place: route.endpoint for place, route in _fixed(routes)}
    if not found:
        raise UnsupportedFastAPI(
            f"FastAPI {fastapi.__version__} is not supported: the route table is empty."
            " Install 'fastapi>=0.133,<0.137'."
        )
    return found


def _fixed(routes: Iterable[BaseRoute]) -> Iterator[tuple[tuple[str, str], DirectRoute]]:
    for route in routes:
        if isinstance(route, DirectRoute) and not route.param_convertors:
            yield from (((method, route.path), route) for method in route.methods)


class RouteScopes:
    """The area of the route that a request will come to: by the shortcut's table, then by the
    router's own matching in its own order. Neither looks at the Host header.
    """

    def __init__(self) -> None:
        self._fixed: dict[tuple[str, str], RouteScope | None] = {}
        self._routes: list[BaseRoute] = []
        self._others: list[BaseRoute] = []  # that no table can hold

    def load(self, routes: Iterable[BaseRoute]) -> None:
        """All routes of the application, once they are there."""
        self._routes = list(routes)
        held = list(_fixed(self._routes))
        self._fixed = {place: route.scope for place, route in held}
        in_table = {id(route) for _, route in held}
        self._others = [route for route in self._routes if id(route) not in in_table]

    def find(self, scope: Scope) -> RouteScope | Literal["nowhere"] | None:
        """None for a route that says nothing, `nowhere` for what the router will refuse."""
        place = scope["method"], scope["path"]
        if place in self._fixed:
            return self._fixed[place]
        # Below a root path the router reads less of the path than the table does
        for route in self._routes if scope.get("root_path") else self._others:
            if route.matches(scope)[0] is Match.FULL:
                return route.scope if isinstance(route, DirectRoute) else None
        return "nowhere"
