"""The route table, scopes of routes, and what a request leaves to the garbage collector."""

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from fastapi import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message

from openai_frontend.middleware.request_id import RequestId
from openai_frontend.routers.routing import (
    DirectDispatch,
    DirectRoute,
    RouteTable,
    UnsupportedFastAPI,
)

HOT = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("GET", "/health/live"),
]


def table_of(routes: Sequence[BaseRoute]) -> RouteTable:
    table = RouteTable()
    table.load(routes)
    return table


@pytest.mark.parametrize("route", HOT, ids=str)
async def test_hot_routes_are_in_the_route_table(world, route):
    """Method and path alone find them."""
    assert route in table_of(world.app.routes).fixed


async def test_only_paths_with_parameters_need_the_router(world):
    direct = [route for route in world.app.routes if isinstance(route, DirectRoute)]

    paths = {path for _, path in table_of(direct).fixed}
    others = {route.path for route in direct} - paths
    assert others
    assert [path for path in others if "{" not in path] == []


def test_an_empty_route_table_is_an_error():
    """FastAPI 0.137 nests the routes of routers; the error says which versions to install."""

    with pytest.raises(UnsupportedFastAPI, match=r"Install 'fastapi>=0.133,<0.137'"):
        table_of([])


async def test_every_route_has_a_scope(world):
    """No key opens a route without one."""
    silent = [route.path for route in world.app.routes if getattr(route, "scope", None) is None]

    assert silent == []


AREAS = [
    ("POST", "/v1/chat/completions", "inference"),
    ("GET", "/v1/models/org/b", "models"),
    ("GET", "/docs/start.js", "docs"),
    ("GET", "/v1/chat/completions", "nowhere"),
    ("HEAD", "/health/live", "nowhere"),
    ("POST", "//v1/chat/completions", "nowhere"),
    ("POST", "/v1/chat/completions/", "nowhere"),
    ("GET", "/v1/Models/a", "nowhere"),
]


@pytest.mark.parametrize(("method", "path", "area"), AREAS)
async def test_scope_is_that_of_the_route_that_answers(world, method, path, area):
    routes = table_of(world.app.routes)

    assert area == routes.scope_of({"type": "http", "method": method, "path": path})


async def test_scope_ignores_the_root_path(world):
    """As the router does."""
    routes = table_of(world.app.routes)
    scope = {"type": "http", "method": "GET", "path": "/x/metrics", "root_path": "/x"}

    assert routes.scope_of(scope) == "metrics"


async def test_route_of_another_class_has_no_scope(world):
    """So no key opens it."""
    routes = table_of([*world.app.routes, Route("/mine", lambda request: Response())])

    assert routes.scope_of({"type": "http", "method": "GET", "path": "/mine"}) is None


async def test_other_requests_reach_the_router_unchanged():
    seen: list[Any] = []

    async def router(scope, receive, send):
        seen.append(scope)

    dispatch = DirectDispatch(router, routes={})
    scopes = [{"type": "lifespan"}, {"type": "http", "method": "GET", "path": "/"}]
    for scope in scopes:
        await dispatch(scope, None, None)  # type: ignore[arg-type]

    assert seen == scopes


async def test_request_id_is_the_outermost_middleware(world):
    """Starlette adds none around it, so every error response is ours."""
    assert type(world.app.build_middleware_stack()) is RequestId


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_request_leaves_no_reference_cycles(world, path):
    """Pauses of the garbage collector delay every stream."""
    world.model()
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    left = await cycles(world.app, path, orjson.dumps(body))

    assert left == []


async def cycles(
    app: Any, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
) -> list[str]:
    """Types of the objects that only the garbage collector can free after one request."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await _exchange(app, path, body, headers)
        await asyncio.sleep(0)
        gc.collect()
        return [type(each).__qualname__ for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def _exchange(
    app: Any, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> None:
    exchange = Exchange(path, body, headers)
    await app(exchange.scope, exchange.receive, exchange.send)
    assert exchange.status == 200


class Exchange:
    """A request that holds its scope, as those of servers do."""

    def __init__(self, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._body = body
        self.status = 0
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(b"host", b"localhost"), *headers],
            "query_string": b"",
        }

    async def receive(self) -> Message:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
