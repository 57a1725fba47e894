"""The application during shutdown: which requests it serves and how it rejects others."""

import pytest

SAME_WAYS = ["/v1/models", "/v1/chat/completions", "/nothing", "/v2/models/m"]


@pytest.fixture
async def stopping(world):
    world.model()
    world.app.state.drain_state.begin_stop()
    return world


async def test_running_server_keeps_connections_open(world):
    world.model()

    answer = await world.chat()

    assert (answer.status_code, answer.headers.get("connection")) == (200, None)


async def test_stopping_server_is_live_but_not_ready(stopping):
    ready = await stopping.client.get("/health/ready")
    live = await stopping.client.get("/health/live")

    assert (ready.status_code, ready.json()["status"]) == (503, "stopping")
    assert live.status_code == 200


async def test_stopping_server_is_not_ready_for_kserve(stopping):
    ready = await stopping.client.get("/v2/health/ready")
    live = await stopping.client.get("/v2/health/live")

    assert (ready.status_code, live.status_code) == (400, 200)


async def test_stopping_server_serves_and_closes_connections(stopping):
    """Clients then open the next connection to another server."""

    answer = await stopping.chat()

    assert (answer.status_code, answer.headers["connection"]) == (200, "close")


@pytest.mark.parametrize("path", SAME_WAYS)
async def test_draining_server_rejects_requests(world, path):
    """With `retry-after` and `connection: close`."""
    world.app.state.drain_state.drain()

    answer = await world.client.post(path, json={})

    assert answer.status_code == 503
    assert "shutting down" in answer.text
    assert (answer.headers["retry-after"], answer.headers["connection"]) == ("5", "close")


async def test_rejection_has_the_code_server_draining(world):
    world.app.state.drain_state.drain()

    answer = await world.chat()

    assert answer.json()["error"]["code"] == "server_draining"


async def test_rejections_are_counted_as_draining(world):
    world.app.state.drain_state.drain()

    await world.chat()

    metrics = (await world.client.get("/metrics")).text
    assert 'openai_frontend_requests_rejected_total{model="",reason="draining"} 1.0' in metrics


@pytest.mark.parametrize("path", ["/health/live", "/metrics", "/v2/health/live"])
async def test_draining_server_serves_health_and_metrics(world, path):
    """Supervisors see it live, and Prometheus can read its last metrics."""
    world.app.state.drain_state.drain()

    answer = await world.client.get(path)

    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
