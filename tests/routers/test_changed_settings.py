"""Settings that change while the application runs: the next request has the new ones."""

import asyncio
import gc
import logging
import weakref
from typing import Any

import httpx
import pytest

from openai_frontend.app import change
from openai_frontend.middleware.proxy_headers import ProxyHeaders
from openai_frontend.setting_table import options
from openai_frontend.settings import Settings
from openai_frontend.triton import Options
from tests.auth.key_files import key, write
from tests.cli import test_taking_up
from tests.routers.conftest import served
from tests.routers.test_stream_options import streamed
from tests.serving.fake_pooling_model import FakePoolingModel

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
USER = {"role": "user", "content": "hi"}
LONG = {"role": "user", "content": "x" * 2000}  # bytes

# A setting -> where a request shows it, what it says, and its status before and after
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

# The same of what needs a key, and of who may ask
OPENINGS: list[tuple[dict[str, Any], str, int, int]] = [
    ({"public_health": False}, "/health/live", 200, 401),
    ({"public_metrics": True}, "/metrics", 401, 200),
    ({"public_docs": True}, "/openapi.json", 401, 200),
    ({"allowed_hosts": ["gateway.example"]}, "/v1/models", 401, 400),
]

# By tests of their own, below and elsewhere
OTHERS = {
    "cors_origins", "access_log", "stream_interval", "force_include_usage",
    "max_concurrent_requests", "max_queue_size", "queue_timeout_s",
    "trace_sample_ratio", "trace_parent_based", "sse_ping_interval_s", "stream_buffer_bytes",
    "trusted_proxies",
}  # fmt: skip

ENGINES: dict[str, Any] = {
    "first_token_timeout_s": 1, "inter_token_timeout_s": 2,
    "engine_max_restarts": 3, "engine_restart_window_s": 4,
}  # fmt: skip


def test_each_is_shown():
    """A mark in the table of settings that nothing shows would be a promise."""
    shown = {name for row in (*CHANGES, *OPENINGS) for name in row[0]}

    marked = {option.name for option in options() if option.reloads}

    assert shown | OTHERS | ENGINES.keys() | test_taking_up.SHOWN == marked


@pytest.mark.parametrize(("new", "path", "body", "before", "after"), CHANGES)
async def test_of_requests(world, new, path, body, before, after):
    """The next request has the new value."""
    world.model()
    world.registry.models["vectors"] = FakePoolingModel()
    world.server.options = Options(model_repositories=[])
    body = {"model": "fake", **body}

    first = await world.client.post(path, json=body)
    change(world.app, Settings(**new))
    second = await world.client.post(path, json=body)

    assert (first.status_code, second.status_code) == (before, after)


@pytest.mark.parametrize(("new", "path", "before", "after"), OPENINGS)
async def test_of_keys(world_of, tmp_path, new, path, before, after):
    """What needs a key, where the server has some."""
    file = write(tmp_path / "keys.yaml", key("k"))
    world = await world_of(Settings(keys_file=file))

    first = await world.client.get(path)
    change(world.app, Settings(keys_file=file, **new))
    second = await world.client.get(path)

    assert (first.status_code, second.status_code) == (before, after)


async def test_of_engines(world):
    """Those that look after engines look by the new limits."""

    change(world.app, Settings(**ENGINES))

    limits = world.app.state.lasting.engines.limits
    assert limits == Settings(**ENGINES).engine_limits() != Settings().engine_limits()


async def test_the_access_log(world, caplog):
    """It begins with the next request."""
    caplog.set_level(logging.INFO)

    await world.client.get("/health/live")
    change(world.app, Settings(access_log=True))
    await world.client.get("/health/live")

    lines = [each.getMessage() for each in caplog.records if each.name.endswith("access_log")]
    assert len(lines) == 1
    assert lines[0].startswith("GET /health/live 200 ")


async def test_of_streams(world):
    """One that begins after the change has the new limits: here a comment, as often as they say."""
    world.model(endless=True)
    body = {"model": "fake", "messages": [USER], "stream": True}

    change(world.app, Settings(sse_ping_interval_s=0.02))

    async with (
        served(world) as (_, url),
        httpx.AsyncClient(timeout=10) as client,
        client.stream("POST", url + CHAT, json=body) as response,
    ):
        comments = (line async for line in response.aiter_lines() if line.startswith(":"))
        assert await anext(comments)
        assert await anext(comments)


async def test_of_proxies(world):
    """From the change on a proxy is believed whom it speaks for (tests/middleware shows how)."""
    before = world.app.middleware_stack

    change(world.app, Settings(trusted_proxies=["127.0.0.1"]))

    assert not isinstance(before, ProxyHeaders)
    assert isinstance(world.app.middleware_stack, ProxyHeaders)


async def test_tokens_for_each_event(world):
    """A stream that begins after the change asks its model for as many."""
    model = world.model()

    await world.chat(stream=True)
    change(world.app, Settings(stream_interval=10))
    await world.chat(stream=True)

    assert [request.stream_interval for request in model.requests] == [1, 10]


async def test_forced_usage(world):
    """The next stream ends with the counts."""
    change(world.app, Settings(force_include_usage=True))

    *_, usage = await streamed(world, "chat", forced=True)

    assert usage["usage"]["completion_tokens"] == 5


WAITS: list[tuple[dict[str, Any], str]] = [
    ({"max_concurrent_requests": 1, "max_queue_size": 0}, "queue_full"),
    ({"max_concurrent_requests": 1, "queue_timeout_s": 0.05}, "queue_timeout"),
]


@pytest.mark.parametrize(("new", "code"), WAITS)
async def test_what_runs_counts_on(world, new, code):
    """A smaller number of places counts the requests of before; once they end, others come in."""
    endless = world.model(endless=True)
    running = asyncio.create_task(world.chat())
    await endless.begun.wait()
    world.model()

    change(world.app, Settings(**new))
    refused = await world.chat()
    running.cancel()
    await asyncio.wait([running])
    taken = await world.chat()

    assert (refused.status_code, taken.status_code) == (503, 200)
    assert refused.json()["error"]["code"] == code


async def test_what_went_is_forgotten(world):
    """A server that is reloaded each day does not grow by it."""
    change(world.app, Settings(max_n=1))
    gone = weakref.ref(world.app.middleware_stack)

    change(world.app, Settings(max_n=2))

    gc.collect()
    assert gone() is None


async def test_the_origins_of_web_pages(world):
    """A page that may use the API is told so from now on."""
    page = {"origin": "https://chat.example.com"}

    before = await world.client.get("/health/live", headers=page)
    change(world.app, Settings(cors_origins=[page["origin"]]))
    after = await world.client.get("/health/live", headers=page)

    header = "access-control-allow-origin"
    assert (before.headers.get(header), after.headers.get(header)) == (None, page["origin"])


async def test_what_lasts(world):
    """The models are those of the start, and the counters count on."""
    world.model()
    await world.chat()

    change(world.app, Settings(max_n=1))

    metrics = await world.client.get("/metrics")
    assert 'route="/v1/chat/completions"' in metrics.text
    assert (await world.chat()).status_code == 200
    assert not world.server.stopped
