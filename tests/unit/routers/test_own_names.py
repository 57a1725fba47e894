"""Settings of whom the server believes, in the application that they make."""

import logging

import pytest

from openai_frontend.config.settings import Settings
from tests.unit.auth.key_files import bearer, key, write


async def test_allowed_host(world_of):
    """A request by another name is refused in the envelope, with an id; /health is not."""
    world = await world_of(Settings(allowed_hosts=["api.example.com"]))

    refused = await world.client.get("/v1/models")
    health = await world.client.get("/health/live")
    allowed = await world.client.get("/v1/models", headers={"host": "API.example.com:8000"})

    assert (refused.status_code, health.status_code, allowed.status_code) == (400, 200, 200)
    assert refused.json()["error"]["code"] == "invalid_host"
    assert refused.headers["x-request-id"].startswith("req_")


REBOUND = {"host": "evil.example"}  # as a page has it whose name now stands for this machine


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
async def test_a_server_for_this_machine_alone(world_of, host):
    """Where nothing is told of who may come, no web page is let in, by whatever way it asks."""
    world = await world_of(Settings(host=host))
    world.model()

    refused = [
        await world.client.get("/v1/models", headers=REBOUND),
        await world.client.get("/metrics", headers=REBOUND),
        await world.client.get("/v2", headers=REBOUND),
        await world.client.post("/v1/chat/completions", headers=REBOUND, json={}),
        await world.client.get("/nothing", headers=REBOUND),
    ]
    names = ("localhost:9000", "127.0.0.1:9000", "[::1]:9000", "192.168.1.2")
    allowed = [await world.client.get("/v1/models", headers={"host": name}) for name in names]

    assert [answer.status_code for answer in refused] == [400] * 5
    assert [answer.status_code for answer in allowed] == [200] * 4
    assert "--allowed-hosts" in refused[0].json()["error"]["message"]


@pytest.mark.parametrize(
    "told",
    [
        {"host": "0.0.0.0"},  # noqa: S104  as containers listen
        {"host": "10.0.0.1"},
        {"trusted_proxies": ["127.0.0.1"]},
        {"unix_socket": "/run/gateway.sock"},
        {"tls_certificate": "/etc/certificate.pem"},
    ],
)
async def test_a_server_for_others(world_of, told):
    """A proxy passes its clients' names on, and a container has any."""
    world = await world_of(Settings(**told))

    answer = await world.client.get("/v1/models", headers={"host": "api.example.com"})

    assert answer.status_code == 200


async def test_a_server_with_keys(world_of, tmp_path):
    """A page has none, and a proxy in front need not be told of."""
    world = await world_of(Settings(keys_file=write(tmp_path / "keys.yaml", key("k"))))

    headers = {"host": "api.example.com", **bearer("k")}
    with_key = await world.client.get("/v1/models", headers=headers)
    page = await world.client.get("/v1/models", headers=REBOUND)

    assert (with_key.status_code, page.status_code) == (200, 401)


async def test_allowed_hosts_replace_the_local_names(world_of):
    """Without the setting a loopback server accepts local names only, with it only those listed."""
    default = await world_of(Settings())
    named = await world_of(Settings(allowed_hosts=["evil.example"]))

    before = await default.client.get("/v1/models", headers=REBOUND)
    after = await named.client.get("/v1/models", headers=REBOUND)
    local = await named.client.get("/v1/models")

    assert (before.status_code, after.status_code, local.status_code) == (400, 200, 400)


async def test_host_is_no_path(world_of):
    """The Host header cannot change what is told of the path."""
    world = await world_of(Settings(trusted_proxies=["127.0.0.1"]))

    answer = await world.client.get("/nothing", headers={"host": "a/v1/models?"})

    assert answer.json()["error"]["message"] == "Invalid URL (GET /nothing)"


@pytest.mark.parametrize(
    ("trusted", "client"), [(["127.0.0.0/8"], "203.0.113.9"), (["10.0.0.0/8"], "127.0.0.1")]
)
async def test_trusted_proxy(world_of, caplog, trusted, client):
    """The access log names the client that a trusted proxy tells of, else the peer."""
    world = await world_of(Settings(trusted_proxies=trusted, access_log=True))

    with caplog.at_level(logging.INFO, "openai_frontend.access_log"):
        await world.client.get("/v1/models", headers={"x-forwarded-for": "203.0.113.9"})

    assert f"client={client}" in caplog.text
