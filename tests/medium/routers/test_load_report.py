"""ORCA's header `endpoint-load-metrics`, for routers that ask for it in a request."""

import json

import pytest

from openai_frontend.config.settings import Settings
from tests.fast.auth.key_files import bearer, key, write

HEADER = "endpoint-load-metrics"
ASK = {f"{HEADER}-format": "JSON"}


async def chat(world, headers, **fields):
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], **fields}
    return await world.client.post("/v1/chat/completions", json=body, headers=headers)


async def test_response_reports_the_load_when_asked(world):
    """It includes the request itself: one runs for the gateway, and waits in the engine."""
    world.model()
    answer = await chat(world, ASK)
    kind, _, report = answer.headers[HEADER].partition(" ")

    assert (answer.status_code, kind) == (200, "JSON")
    assert json.loads(report)["named_metrics"]["kv_cache_usage_perc"] == 0.25


async def test_stream_and_error_report_it_too(world):
    """A router learns from a rejection that the server is full."""
    world.model()
    headers = [
        (await chat(world, ASK, stream=True)).headers,
        (await chat(world, ASK, n="many")).headers,
        (await chat(world, {f"{HEADER}-format": "TEXT"})).headers,
    ]

    assert [each[HEADER].split()[0] for each in headers] == ["JSON", "JSON", "TEXT"]


async def test_response_has_no_load_otherwise(world):
    """Without the request's header, or with a format that does not exist."""
    world.model()
    answers = [await chat(world, {}), await chat(world, {f"{HEADER}-format": "BIN"})]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.headers.get(HEADER) for answer in answers] == [None, None]


@pytest.mark.parametrize("public", [False, True])
async def test_load_is_for_keys_that_may_read_metrics(world_of, tmp_path, public):
    """The header must not be a way around the scope `metrics`, unless metrics are public."""
    keys = write(
        tmp_path / "keys.yaml",
        key("user", scopes=frozenset({"inference"})),
        key("router", scopes=frozenset({"inference", "metrics"})),
    )
    world = await world_of(Settings(keys_file=keys, public_metrics=public))
    world.model()
    reported = [
        HEADER in (await chat(world, {**ASK, **headers})).headers
        for headers in (bearer("user"), bearer("router"), {})
    ]

    assert reported == [public, True, public]
