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
    """FastAPI's route without its parsing of parameters and bodies.

    Each subclass names the scope that opens it (docs/authentication.md). A subclass that names
    none opens to no key.
    """

    scope: ClassVar[RouteScope | None] = None

    def get_route_handler(self) -> Endpoint:
        """Skips FastAPI's own handling; this is its hook for that."""
        return self.endpoint


class InferenceRoute(DirectRoute):
    """Inference and tokenization."""

    scope = "inference"


class ModelsRoute(DirectRoute):
    """Lists and descriptions of models."""

    scope = "models"


class MetricsRoute(DirectRoute):
    """Metrics and versions."""

    scope = "metrics"


class AdminRoute(DirectRoute):
    """Changes to the server."""

    scope = "admin"


class HealthRoute(DirectRoute):
    """Health checks, usually without a key."""

    scope = "health"


class DocsRoute(DirectRoute):
    """The API's documentation."""

    scope = "docs"


class PublicRoute(DirectRoute):
    """Public, with or without keys."""

    scope = "public"


class RouteTable:
    """Middleware that dispatches requests by method and path with a dict.

    Requests not in the table go to FastAPI's router, which handles paths with parameters and
    errors. The router takes 50 us, mostly for exit stacks that these endpoints never use
    (docs/decisions/0011).
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
    """Method and path -> endpoint, for direct routes without path parameters.

    Raises UnsupportedFastAPI if there are none, because then no key would have access to any path.
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
    """The area of the route that will handle a request, by `RouteTable`'s table and then by the
    router's own matching and order. Neither looks at the Host header.
    """

    def __init__(self) -> None:
        self._fixed: dict[tuple[str, str], RouteScope | None] = {}
        self._routes: list[BaseRoute] = []
        self._others: list[BaseRoute] = []  # routes with path parameters

    def load(self, routes: Iterable[BaseRoute]) -> None:
        """Takes all routes of the application, once they are registered."""
        self._routes = list(routes)
        held = list(_fixed(self._routes))
        self._fixed = {place: route.scope for place, route in held}
        in_table = {id(route) for _, route in held}
        self._others = [route for route in self._routes if id(route) not in in_table]

    def find(self, scope: Scope) -> RouteScope | Literal["nowhere"] | None:
        """None for a route without a scope, `nowhere` if the router will answer 404 or 405."""
        place = scope["method"], scope["path"]
        if place in self._fixed:
            return self._fixed[place]
        # With a root path the router matches less of the path than the table does
        for route in self._routes if scope.get("root_path") else self._others:
            if route.matches(scope)[0] is Match.FULL:
                return route.scope if isinstance(route, DirectRoute) else None
        return "nowhere"
