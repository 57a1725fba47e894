"""Requests show each setting: with the default value, and with another one."""

import asyncio
import logging
from typing import Any

import httpx
import pytest

from openai_frontend.config.settings import Settings
from openai_frontend.middleware.proxy_headers import ProxyHeaders
from openai_frontend.triton import Options
from tests.unit.auth.key_files import key, write
from tests.unit.routers.conftest import served
from tests.unit.routers.test_stream_options import streamed
from tests.unit.serving.fake_pooling_model import FakePoolingModel

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
USER = {"role": "user", "content": "hi"}
LONG = {"role": "user", "content": "x" * 2000}  # bytes

# Setting, path, body, and the status with the default and with this value
CHANGES: list[tuple[dict[str, Any], str, dict[str, Any], int, int]] = [
    ({"max_body_bytes": 1000}, CHAT, {"messages": [LONG]}, 200, 413),
    ({"max_buffered_body_bytes": 10}, CHAT, {"messages": [USER]}, 200, 503),
    ({"max_prompt_tokens": 1}, CHAT, {"messages": [USER]}, 200, 400),
    ({"max_messages": 1}, CHAT, {"messages": [USER, USER]}, 200, 400),
    ({"max_n": 1}, CHAT, {"messages": [USER], "n": 2}, 200, 400),
    ({"max_prompt_tokens": 1}, CHAT, {"messages": [USER]}, 200, 400),
    ({"max_output_tokens": 5}, CHAT, {"messages": [USER], "max_tokens": 6}, 200, 400),
    ({"unknown_fields": "reject"}, CHAT, {"messages": [USER], "nonsense": 1}, 200, 400),
    ({"max_prompts": 1}, COMPLETIONS, {"prompt": ["a", "b"]}, 200, 400),
    ({"max_input_tokens": 1}, EMBEDDINGS, {"model": "vectors", "input": "ab"}, 200, 400),
    ({"enable_model_management": True}, "/v1/models/fake/load", {}, 403, 409),
]

# Setting, path, and the status of a request without a key, by default and with this value
OPENINGS: list[tuple[dict[str, Any], str, int, int]] = [
    ({"public_health": False}, "/health/live", 200, 401),
    ({"public_metrics": True}, "/metrics", 401, 200),
    ({"public_docs": True}, "/openapi.json", 401, 200),
    ({"allowed_hosts": ["gateway.example"]}, "/v1/models", 401, 400),
]

ENGINES: dict[str, Any] = {
    "first_token_timeout_s": 1, "inter_token_timeout_s": 2,
    "engine_max_restarts": 3, "engine_restart_window_s": 4,
}  # fmt: skip


@pytest.mark.parametrize(("new", "path", "body", "before", "after"), CHANGES)
async def test_request_shows_the_setting(world_of, new, path, body, before, after):
    statuses = []
    for settings in (Settings(), Settings(**new)):
        world = await world_of(settings)
        world.model()
        world.registry.models["vectors"] = FakePoolingModel()
        world.server.options = Options(model_repositories=[])
        response = await world.client.post(path, json={"model": "fake", **body})
        statuses.append(response.status_code)

    assert statuses == [before, after]


@pytest.mark.parametrize(("new", "path", "before", "after"), OPENINGS)
async def test_request_without_a_key(world_of, tmp_path, new, path, before, after):
    """A server with keys answers as the settings say."""
    file = write(tmp_path / "keys.yaml", key("k"))
    default = await world_of(Settings(keys_file=file))
    changed = await world_of(Settings(keys_file=file, **new))

    responses = [await world.client.get(path) for world in (default, changed)]

    assert [response.status_code for response in responses] == [before, after]


async def test_engine_limits(world_of):
    """The supervisor of the engines gets them."""
    world = await world_of(Settings(**ENGINES))

    limits = world.app.state.gateway.engines.limits
    assert limits == Settings(**ENGINES).engine_limits() != Settings().engine_limits()


async def test_access_log(world_of, caplog):
    """Off by default; one line for each request if it is on."""
    caplog.set_level(logging.INFO)

    for settings in (Settings(), Settings(access_log=True)):
        world = await world_of(settings)
        await world.client.get("/health/live")

    lines = [each.getMessage() for each in caplog.records if each.name.endswith("access_log")]
    assert len(lines) == 1
    assert lines[0].startswith("GET /health/live 200 ")


async def test_sse_pings(world_of):
    """A silent stream sends a comment after each interval."""
    world = await world_of(Settings(sse_ping_interval_s=0.02))
    world.model(endless=True)
    body = {"model": "fake", "messages": [USER], "stream": True}

    async with (
        served(world) as (_, url),
        httpx.AsyncClient(timeout=10) as client,
        client.stream("POST", url + CHAT, json=body) as response,
    ):
        comments = (line async for line in response.aiter_lines() if line.startswith(":"))
        assert await anext(comments)
        assert await anext(comments)


async def test_trusted_proxies(world_of):
    """Proxy headers are read only with trusted proxies (tests/unit/middleware shows how)."""
    default = await world_of(Settings())
    trusting = await world_of(Settings(trusted_proxies=["127.0.0.1"]))
    for world in (default, trusting):
        await world.client.get("/health/live")  # the middleware is built at the first request

    assert not isinstance(default.app.middleware_stack, ProxyHeaders)
    assert isinstance(trusting.app.middleware_stack, ProxyHeaders)


async def test_stream_interval(world_of):
    """Streams ask the model for events of that many tokens."""
    intervals = []
    for settings in (Settings(), Settings(stream_interval=10)):
        world = await world_of(settings)
        model = world.model()
        await world.chat(stream=True)
        intervals += [request.stream_interval for request in model.requests]

    assert intervals == [1, 10]


async def test_forced_usage(world_of):
    """Every stream ends with the token counts."""
    world = await world_of(Settings(force_include_usage=True))

    *_, usage = await streamed(world, "chat", forced=True)

    assert usage["usage"]["completion_tokens"] == 5


WAITS: list[tuple[dict[str, Any], str]] = [
    ({"max_concurrent_requests": 1, "max_queue_size": 0}, "queue_full"),
    ({"max_concurrent_requests": 1, "queue_timeout_s": 0.05}, "queue_timeout"),
]


@pytest.mark.parametrize(("new", "code"), WAITS)
async def test_limits_of_running_and_waiting_requests(world_of, new, code):
    """A request beyond the limit gets 503; one that comes when the slot is free gets 200."""
    world = await world_of(Settings(**new))
    endless = world.model(endless=True)
    running = asyncio.create_task(world.chat())
    await endless.begun.wait()
    world.model()

    refused = await world.chat()
    running.cancel()
    await asyncio.wait([running])
    taken = await world.chat()

    assert (refused.status_code, taken.status_code) == (503, 200)
    assert refused.json()["error"]["code"] == code


async def test_cors_origins(world_of):
    """Only a listed origin gets the CORS header."""
    page = {"origin": "https://chat.example.com"}
    header, found = "access-control-allow-origin", []
    for settings in (Settings(), Settings(cors_origins=[page["origin"]])):
        world = await world_of(settings)
        response = await world.client.get("/health/live", headers=page)
        found.append(response.headers.get(header))

    assert found == [None, page["origin"]]
