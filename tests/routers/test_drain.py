"""The application on its way to the end: where it still answers, and what it says elsewhere."""

import pytest

SAME_WAYS = ["/v1/models", "/v1/chat/completions", "/nothing", "/v2/models/m"]


@pytest.fixture
async def leaving(world):
    world.model()
    world.app.state.drain_state.begin_stop()
    return world


async def test_before_the_end(world):
    """A server that is to go on leaves connections open."""
    world.model()

    answer = await world.chat()

    assert (answer.status_code, answer.headers.get("connection")) == (200, None)


async def test_a_process_that_leaves_is_not_ready(leaving):
    """Readiness goes at once; the process lives."""

    ready = await leaving.client.get("/health/ready")
    live = await leaving.client.get("/health/live")

    assert (ready.status_code, ready.json()["status"]) == (503, "stopping")
    assert live.status_code == 200


async def test_kserves_readiness_goes_too(leaving):
    """Both protocols tell the same."""

    ready = await leaving.client.get("/v2/health/ready")
    live = await leaving.client.get("/v2/health/live")

    assert (ready.status_code, live.status_code) == (400, 200)


async def test_a_process_that_leaves_still_answers(leaving):
    """Who has not noticed yet is served, and makes a new connection the next time."""

    answer = await leaving.chat()

    assert (answer.status_code, answer.headers["connection"]) == (200, "close")


@pytest.mark.parametrize("path", SAME_WAYS)
async def test_a_process_that_drains_takes_no_request(world, path):
    """Each is told when to come again, and to make another connection for it."""
    world.app.state.drain_state.drain()

    answer = await world.client.post(path, json={})

    assert answer.status_code == 503
    assert "shutting down" in answer.text
    assert (answer.headers["retry-after"], answer.headers["connection"]) == ("5", "close")


async def test_what_a_refusal_is_called(world):
    """OpenAI's envelope, with a code of its own."""
    world.app.state.drain_state.drain()

    answer = await world.chat()

    assert answer.json()["error"]["code"] == "server_draining"


async def test_refusals_are_counted(world):
    """By their reason: how many came too late is seen."""
    world.app.state.drain_state.drain()

    await world.chat()

    metrics = (await world.client.get("/metrics")).text
    assert 'openai_frontend_requests_rejected_total{model="",reason="draining"} 1.0' in metrics


@pytest.mark.parametrize("path", ["/health/live", "/metrics", "/v2/health/live"])
async def test_a_process_that_drains_is_looked_at_to_the_end(world, path):
    """A supervisor sees it live, and the figures of its last seconds are read."""
    world.app.state.drain_state.drain()

    answer = await world.client.get(path)

    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
