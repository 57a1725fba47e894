"""The route table, scopes of routes, and what a request leaves to the garbage collector."""

import asyncio
import gc
import re
from collections.abc import Sequence
from typing import Any

import fastapi.routing
import orjson
import pytest
from fastapi import APIRouter, FastAPI, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.config.settings import Settings
from openai_frontend.middleware.direct_dispatch import DirectDispatch
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.routers.routing import RouteTable, all_routes
from openai_frontend.runtime import compatibility
from openai_frontend.runtime.compatibility import UnsupportedPackage

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
async def test_hot_routes_are_in_the_route_table(routes, route):
    """Method and path alone find them."""
    assert route in table_of(routes).fixed


async def test_only_paths_with_parameters_need_the_router(routes):
    paths = {path for _, path in table_of(routes).fixed}
    others = {route.path for route in routes} - paths
    assert others
    assert [path for path in others if "{" not in path] == []


async def test_all_routes_lists_what_the_application_serves(world, routes):
    """With FastAPI's own nested routers too: each path is one of its OpenAPI document."""
    document = world.app.openapi()["paths"]

    assert {route.path_format for route in routes if route.include_in_schema} == {*document}


def test_all_routes_lists_the_routes_of_included_routers():
    """FastAPI nests them since 0.137."""
    inner, outer, app = APIRouter(), APIRouter(), FastAPI(openapi_url=None)
    inner.add_api_route("/a", lambda: None)
    outer.include_router(inner)
    outer.add_api_route("/b", lambda: None)
    app.include_router(outer)

    assert [route.path for route in all_routes(app)] == ["/a", "/b"]


def test_an_empty_route_table_is_an_error():
    """No key would open any route. The error names the versions to install."""
    with pytest.raises(UnsupportedPackage, match=r"^fastapi .* table is empty\. Install 'fastapi"):
        table_of([])


async def test_nested_routes_are_an_error(world, routes, monkeypatch):
    """FastAPI 0.137.0 and 0.137.1 hide the routes of routers."""
    nested = type("_IncludedRouter", (BaseRoute,), {})()
    monkeypatch.delattr(fastapi.routing, "iter_route_contexts", raising=False)
    monkeypatch.setattr(world.app.router, "routes", [*routes, nested])

    with pytest.raises(UnsupportedPackage, match="lists _IncludedRouter instead of routes"):
        all_routes(world.app)


@pytest.mark.parametrize("name", compatibility.ROUTE.names)
async def test_router_handles_all_requests_if_routes_lack_a_name(routes, monkeypatch, caplog, name):
    """The scopes stay, so the same keys open the same routes."""
    names = [each for each in compatibility.ROUTE.names if each != name]
    monkeypatch.setattr(compatibility.ROUTE.load(), "__dir__", lambda self: names)

    table = table_of(routes)

    assert table.fixed == {}
    assert f"has no {name}, so every request goes through FastAPI's router" in caplog.text
    scopes = {table.scope_of(asked(method, path)) == area for method, path, area in AREAS}
    assert scopes == {True}


@pytest.mark.parametrize("stream", [False, True])
async def test_router_serves_chats(world_of, monkeypatch, stream):
    """The slow path gives the same answer, and counts it under the same route."""
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    texts = []
    for names in (compatibility.ROUTE.names, ()):
        monkeypatch.setattr(compatibility.ROUTE.load(), "__dir__", lambda self, is_=names: is_)
        world = await world_of(Settings())
        world.model()
        answer = await world.client.post("/v1/chat/completions", json=body)
        metrics = (await world.client.get("/metrics")).text
        assert answer.status_code == 200
        assert 'route="/v1/chat/completions"' in metrics
        texts.append(re.sub(r'"(id|created)":("[^"]*"|\d+)', "", answer.text))

    assert texts[0] == texts[1]


async def test_other_middleware_around_ours_is_kept(world, monkeypatch, caplog):
    """Requests then pass through it: slower, but answered as before."""
    hidden = HiddenStack(FastAPI.build_middleware_stack(world.app))
    monkeypatch.setattr(FastAPI, "build_middleware_stack", lambda self: hidden)
    world.app.middleware_stack = world.app.build_middleware_stack()

    answer = await world.client.get("/health/live")

    assert (answer.status_code, type(world.app.middleware_stack)) == (200, HiddenStack)
    assert "its middleware cannot be left out" in caplog.text


class HiddenStack:
    """FastAPI's middleware, without the attribute that leads to the next."""

    def __init__(self, stack: ASGIApp) -> None:
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Message) -> None:
            await send(message)

        await self._stack(scope, receive, wrapped)


async def test_every_route_has_a_scope(routes):
    """No key opens a route without one."""
    silent = [route.path for route in routes if getattr(route, "scope", None) is None]

    assert silent == []


AREAS = [
    ("POST", "/v1/chat/completions", "inference"),
    ("GET", "/v1/models/org/b", "models"),
    ("GET", "/docs/start.js", "public"),
    ("GET", "/v1/chat/completions", "nowhere"),
    ("HEAD", "/health/live", "nowhere"),
    ("POST", "//v1/chat/completions", "nowhere"),
    ("POST", "/v1/chat/completions/", "nowhere"),
    ("GET", "/v1/Models/a", "nowhere"),
]


@pytest.mark.parametrize(("method", "path", "area"), AREAS)
async def test_scope_is_that_of_the_route_that_answers(routes, method, path, area):
    assert table_of(routes).scope_of(asked(method, path)) == area


def asked(method: str, path: str, **scope: str) -> dict[str, str]:
    return {"type": "http", "method": method, "path": path, **scope}


async def test_scope_ignores_the_root_path(routes):
    """As the router does."""
    assert table_of(routes).scope_of(asked("GET", "/x/metrics", root_path="/x")) == "metrics"


async def test_route_of_another_class_has_no_scope(routes):
    """So no key opens it."""
    table = table_of([*routes, Route("/mine", lambda request: Response())])

    assert table.scope_of(asked("GET", "/mine")) is None


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
