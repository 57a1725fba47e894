"""Settings of whom the server believes, in the application that they make."""

import logging

import pytest

from openai_frontend.settings import Settings


async def test_allowed_host(world_of):
    """A request by another name is refused in the envelope, with an id; /health is not."""
    world = await world_of(Settings(allowed_host=["api.example.com"]))

    refused = await world.client.get("/v1/models")
    health = await world.client.get("/health/live")
    allowed = await world.client.get("/v1/models", headers={"host": "API.example.com:8000"})

    assert (refused.status_code, health.status_code, allowed.status_code) == (400, 200, 200)
    assert refused.json()["error"]["code"] == "invalid_host"
    assert refused.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("trusted", "client"), [(["127.0.0.0/8"], "203.0.113.9"), (["10.0.0.0/8"], "127.0.0.1")]
)
async def test_trusted_proxy(world_of, caplog, trusted, client):
    """The access log names the client that a trusted proxy tells of, else the peer."""
    world = await world_of(Settings(trusted_proxy=trusted, access_log=True))

    with caplog.at_level(logging.INFO, "openai_frontend.access_log"):
        await world.client.get("/v1/models", headers={"x-forwarded-for": "203.0.113.9"})

    assert f"client={client}" in caplog.text
