"""Routes whose endpoints take a request and return a response, without FastAPI's own handling."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeGuard

import fastapi.routing
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.auth.api_keys import RouteScope
from openai_frontend.runtime import compatibility
from openai_frontend.runtime.compatibility import UnsupportedPackage

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


def all_routes(app: FastAPI) -> list[Route]:
    """The routes of an application in the order of their matching. Raises UnsupportedPackage.

    FastAPI's `include_router` nests the routes since 0.137; before, it copied them into
    `app.routes`. A nested route has no prefix in its path, and no router of ours has one.
    """
    contexts = getattr(fastapi.routing, "iter_route_contexts", None)  # since 0.137.2
    found = [*app.routes] if contexts is None else [each.route for each in contexts(app.routes)]
    routes = [each for each in found if isinstance(each, Route)]
    if others := sorted({type(each).__name__ for each in found if not isinstance(each, Route)}):
        raise UnsupportedPackage("fastapi", f"it lists {', '.join(others)} instead of routes")
    return routes


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


class TransferRoute(DirectRoute):
    """Prompts of decode servers, on a listener of their own."""

    scope = "transfer"


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
    """Which route answers a request. Everything that needs to know asks here.

    A path without parameters is found in a dict, any other by FastAPI's own routes in their order.
    None of them looks at the Host header.
    """

    def __init__(self) -> None:
        # By method and path
        self.fixed: dict[tuple[str, str], DirectRoute] = {}
        self._routes: list[BaseRoute] = []
        self._others: list[BaseRoute] = []  # not in `fixed`

    def load(self, routes: Iterable[BaseRoute]) -> None:
        """Takes all routes of the application, once they are registered.

        Raises UnsupportedPackage if none has a scope: then no key would have access to any.
        """
        self._routes = self._others = [*routes]
        direct = next((each for each in self._routes if isinstance(each, DirectRoute)), None)
        if direct is None:
            raise UnsupportedPackage("fastapi", "the route table is empty")
        slower = "every request goes through FastAPI's router, which needs more CPU"
        if compatibility.check(compatibility.ROUTE, direct, otherwise=slower):
            fixed = [each for each in self._routes if _is_fixed(each)]
            self.fixed |= {(method, each.path): each for each in fixed for method in each.methods}
            self._others = [each for each in self._routes if not _is_fixed(each)]

    def scope_of(self, scope: Scope) -> RouteScope | Literal["nowhere"] | None:
        """None for a route without a scope, `nowhere` if the router will answer 404 or 405."""
        if (route := self.fixed.get((scope["method"], scope["path"]))) is not None:
            return route.scope
        # With a root path the router matches less of the path than the table does
        for other in self._routes if scope.get("root_path") else self._others:
            if other.matches(scope)[0] is Match.FULL:
                return other.scope if isinstance(other, DirectRoute) else None
        return "nowhere"


def _is_fixed(route: BaseRoute) -> TypeGuard[DirectRoute]:
    return isinstance(route, DirectRoute) and not route.param_convertors


class DirectDispatch:
    """Middleware that calls the endpoints with fixed paths without FastAPI's router.

    The router handles all others, and errors. It takes 50 us, mostly for exit stacks that these
    endpoints never use (docs/decisions/0009-request-path.md).
    """

    def __init__(self, app: ASGIApp, *, routes: Mapping[tuple[str, str], DirectRoute]) -> None:
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


class RequestNormalization:
    """Middleware that rewrites the method and path to the form in which routes are declared: strips
    the root path and a trailing slash, and serves HEAD by the routes of GET.

    It runs before host checks, authentication, metrics and the router, so that all see the same.
    """

    def __init__(self, app: ASGIApp, *, root_path: str = "") -> None:
        """`root_path`: prefix under which a reverse proxy serves the API; most proxies strip it."""
        self._app = app
        self._root_path = root_path

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine itself, since most requests pass unchanged."""
        if scope["type"] == "http":
            method, path = scope["method"], normalized_path(scope["path"], self._root_path)
            if method == "HEAD":  # uvicorn keeps its own scope and omits the body
                method = "GET"
            if (method, path) != (scope["method"], scope["path"]):
                scope = {**scope, "method": method, "path": path}
        return self._app(scope, receive, send)


def normalized_path(path: str, root_path: str = "") -> str:
    """Removes one trailing slash. Nothing else is normalized: `//v1/models` is not a route."""
    if root_path and path == root_path:
        return "/"
    if root_path and path.startswith(f"{root_path}/"):
        path = path.removeprefix(root_path)
    return path[:-1] if path.endswith("/") and path != "/" else path
