"""Each setting changes how requests are answered: its default against another value."""

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from openai_frontend.config.settings import Settings
from openai_frontend.middleware.proxy_headers import ProxyHeaders
from openai_frontend.triton import Options
from tests.fast.auth.key_files import key, write
from tests.medium.routers.conftest import served
from tests.medium.routers.test_stream_options import streamed

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
LONG = {"role": "user", "content": "x" * 2000}  # bytes

# Setting, path, body, and the status with the default and with the new value
CHANGES: list[tuple[dict[str, Any], str, dict[str, Any], int, int]] = [
    ({"max_body_bytes": 1000}, CHAT, {"messages": [LONG]}, 200, 413),
    ({"max_buffered_body_bytes": 10}, CHAT, {"messages": [USER]}, 200, 503),
    ({"max_prompt_tokens": 1}, CHAT, {"messages": [USER]}, 200, 400),
    ({"max_n": 1}, CHAT, {"messages": [USER], "n": 2}, 200, 400),
    ({"max_prompt_tokens": 1}, CHAT, {"messages": [USER]}, 200, 400),
    ({"max_output_tokens": 5}, CHAT, {"messages": [USER], "max_tokens": 6}, 200, 400),
    ({"unknown_fields": "reject"}, CHAT, {"messages": [USER], "nonsense": 1}, 200, 400),
    ({"enable_model_management": True}, "/v1/models/fake/load", {}, 403, 409),
]

# Setting, path, and the status without a key, with the default and with the new value
OPENINGS: list[tuple[dict[str, Any], str, int, int]] = [
    ({"public_health": False}, "/health/live", 200, 401),
    ({"public_metrics": True}, "/metrics", 401, 200),
    ({"web_pages": "public"}, "/openapi.json", 401, 200),
    ({"allowed_hosts": ["gateway.example"]}, "/v1/models", 401, 400),
]

ENGINES: dict[str, Any] = {
    "first_token_timeout_s": 1, "inter_token_timeout_s": 2,
    "engine_max_restarts": 3, "engine_restart_window_s": 4,
}  # fmt: skip


@pytest.mark.parametrize(("new", "path", "body", "before", "after"), CHANGES)
async def test_setting_changes_the_status_of_a_request(world_of, new, path, body, before, after):
    statuses = []
    for settings in (Settings(), Settings(**new)):
        world = await world_of(settings)
        world.model()
        world.server.options = Options(model_repositories=[])
        response = await world.client.post(path, json={"model": "fake", **body})
        statuses.append(response.status_code)

    assert statuses == [before, after]


@pytest.mark.parametrize(("new", "path", "before", "after"), OPENINGS)
async def test_setting_changes_the_status_of_a_request_without_a_key(
    world_of, tmp_path, new, path, before, after
):
    """The server has keys."""
    file = write(tmp_path / "keys.yaml", key("k"))
    default = await world_of(Settings(keys_file=file))
    changed = await world_of(Settings(keys_file=file, **new))

    responses = [await world.client.get(path) for world in (default, changed)]

    assert [response.status_code for response in responses] == [before, after]


async def test_engine_limits_reach_the_supervisor(world_of):
    world = await world_of(Settings(**ENGINES))

    limits = world.app.state.gateway.engine_supervisor._limits
    assert limits == Settings(**ENGINES).engine_limits() != Settings().engine_limits()


async def test_access_log_has_a_line_per_request_if_enabled(world_of, caplog):
    """It is off by default."""
    caplog.set_level(logging.INFO)

    for settings in (Settings(), Settings(access_log=True)):
        world = await world_of(settings)
        await world.client.get("/health/live")

    lines = [each.getMessage() for each in caplog.records if each.name.endswith("access_log")]
    assert len(lines) == 1
    assert lines[0].startswith("GET /health/live 200 ")


async def test_silent_stream_sends_a_comment_after_each_interval(world_of):
    world = await world_of(Settings(sse_ping_interval_s=0.02))
    world.model(endless=True)
    body = {"model": "fake", "messages": [USER], "stream": True}

    async with (
        served(world) as (_, url),
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", url + CHAT, json=body) as response,
    ):
        comments = (line async for line in response.aiter_lines() if line.startswith(":"))
        assert await anext(comments)
        assert await anext(comments)


async def test_silent_message_begins_before_its_first_ping(world_of):
    """Then `message_start` has the whole prompt: the model has not counted what was cached."""
    world = await world_of(Settings(sse_ping_interval_s=0.02))
    world.model(bursts=[], endless=True)
    body = {"model": "fake", "messages": [USER], "max_tokens": 9, "stream": True}

    async with (
        served(world) as (_, url),
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{url}/v1/messages", json=body) as response,
    ):
        data = (line[6:] async for line in response.aiter_lines() if line.startswith("data: "))
        events = [json.loads(await anext(data)) for _ in range(4)]

    kinds = ["message_start", "content_block_start", "ping", "ping"]
    assert [each["type"] for each in events] == kinds
    assert events[0]["message"]["usage"]["input_tokens"] == len(USER["content"])


async def test_proxy_headers_are_read_only_with_trusted_proxies(world_of):
    """tests/fast/middleware tests the headers."""
    default = await world_of(Settings())
    trusting = await world_of(Settings(trusted_proxies=["127.0.0.1"]))
    for world in (default, trusting):
        await world.client.get("/health/live")  # the middleware is built at the first request

    assert not isinstance(default.app.middleware_stack, ProxyHeaders)
    assert isinstance(trusting.app.middleware_stack, ProxyHeaders)


async def test_stream_interval_reaches_the_model(world_of):
    """Number of tokens per event."""
    intervals = []
    for settings in (Settings(), Settings(stream_interval=10)):
        world = await world_of(settings)
        model = world.model()
        await world.chat(stream=True)
        intervals += [request.stream_interval for request in model.requests]

    assert intervals == [1, 10]


async def test_force_include_usage_ends_every_stream_with_the_usage(world_of):
    world = await world_of(Settings(force_include_usage=True))

    *_, usage = await streamed(world, "chat", forced=True)

    assert usage["usage"]["completion_tokens"] == 5


WAITS: list[tuple[dict[str, Any], str]] = [
    ({"max_concurrent_requests": 1, "max_queue_size": 0}, "queue_full"),
    ({"max_concurrent_requests": 1, "queue_timeout_s": 0.05}, "queue_timeout"),
    ({"max_concurrent_requests": 1, "behind_router": True}, "queue_full"),
]


@pytest.mark.parametrize(("new", "code"), WAITS)
async def test_limits_of_running_and_queued_requests(world_of, new, code):
    """A request beyond the limit gets 503. Once the slot is free, a request gets 200."""
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


async def test_only_listed_origins_get_the_cors_header(world_of):
    page = {"origin": "https://chat.example.com"}
    header, found = "access-control-allow-origin", []
    for settings in (Settings(), Settings(cors_origins=[page["origin"]])):
        world = await world_of(settings)
        response = await world.client.get("/health/live", headers=page)
        found.append(response.headers.get(header))

    assert found == [None, page["origin"]]
