"""Routes whose endpoints take a request and return a response, without FastAPI's own handling."""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeGuard

import fastapi.routing
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from openai_frontend.auth.api_keys import RouteScope
from openai_frontend.runtime import compatibility
from openai_frontend.runtime.compatibility import UnsupportedPackage

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

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


class JsonResponse(Response):
    """A complete answer in JSON. Starlette's response would search its headers for what this one
    knows, and take ten more calls.
    """

    def __init__(self, body: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self.status_code = 200
        self.background = None
        self.body = body
        self.raw_headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
        ]
        if headers:
            self.raw_headers += raw_headers(headers)


def raw_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """The headers as ASGI takes them."""
    return [(name.encode(), value.encode()) for name, value in headers.items()]


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


class MessagesRoute(DirectRoute):
    """Inference in Anthropic's Messages API."""

    scope = "messages"


class ResponsesRoute(DirectRoute):
    """Inference in OpenAI's Responses API."""

    scope = "responses"


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
    """Finds the route of a request, for all that need to know it.

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
        route = self.route_of(scope)
        if route is None:
            return "nowhere"
        return route.scope if isinstance(route, DirectRoute) else None

    def route_of(self, scope: Scope) -> BaseRoute | None:
        """None if the router will answer 404 or 405."""
        if (route := self.fixed.get((scope["method"], scope["path"]))) is not None:
            return route
        # With a root path the router matches less of the path than the table does
        others = self._routes if scope.get("root_path") else self._others
        return next((each for each in others if each.matches(scope)[0] is Match.FULL), None)


def _is_fixed(route: BaseRoute) -> TypeGuard[DirectRoute]:
    return isinstance(route, DirectRoute) and not route.param_convertors
