"""Allowed hosts and trusted proxies, in an application made from the settings."""

import logging

import pytest

from openai_frontend.config.settings import Settings
from tests.fast.auth.key_files import bearer, key, write


async def test_other_host_names_are_a_400(world_of):
    """In OpenAI's envelope, with a request id. /health accepts every name."""
    world = await world_of(Settings(allowed_hosts=["api.example.com"]))

    refused = await world.client.get("/v1/models")
    health = await world.client.get("/health/live")
    allowed = await world.client.get("/v1/models", headers={"host": "API.example.com:8000"})

    assert (refused.status_code, health.status_code, allowed.status_code) == (400, 200, 200)
    assert refused.json()["error"]["code"] == "invalid_host"
    assert refused.headers["x-request-id"].startswith("req_")


REBOUND = {"host": "evil.example"}  # sent by a page whose name now resolves to this machine


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
async def test_loopback_server_accepts_local_names_only(world_of, host):
    """By default. This stops DNS rebinding: no web page can send requests to any path."""
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
async def test_server_for_other_machines_accepts_every_name(world_of, told):
    """A proxy forwards the names that its clients use, and a container may have any name."""
    world = await world_of(Settings(**told))

    answer = await world.client.get("/v1/models", headers={"host": "api.example.com"})

    assert answer.status_code == 200


async def test_server_with_keys_accepts_every_name(world_of, tmp_path):
    """A web page has no key, and a proxy in front needs no setting."""
    world = await world_of(Settings(keys_file=write(tmp_path / "keys.yaml", key("k"))))

    headers = {"host": "api.example.com", **bearer("k")}
    with_key = await world.client.get("/v1/models", headers=headers)
    page = await world.client.get("/v1/models", headers=REBOUND)

    assert (with_key.status_code, page.status_code) == (200, 401)


async def test_allowed_hosts_replace_the_local_names(world_of):
    """By default a loopback server accepts local names only, with the setting listed names only."""
    default = await world_of(Settings())
    named = await world_of(Settings(allowed_hosts=["evil.example"]))

    before = await default.client.get("/v1/models", headers=REBOUND)
    after = await named.client.get("/v1/models", headers=REBOUND)
    local = await named.client.get("/v1/models")

    assert (before.status_code, after.status_code, local.status_code) == (400, 200, 400)


async def test_host_header_does_not_change_the_path_in_errors(world_of):
    world = await world_of(Settings(trusted_proxies=["127.0.0.1"]))

    answer = await world.client.get("/nothing", headers={"host": "a/v1/models?"})

    assert answer.json()["error"]["message"] == "Invalid URL (GET /nothing)"


@pytest.mark.parametrize(
    ("trusted", "client"), [(["127.0.0.0/8"], "203.0.113.9"), (["10.0.0.0/8"], "127.0.0.1")]
)
async def test_access_log_names_the_client_of_a_trusted_proxy(world_of, caplog, trusted, client):
    """Otherwise it names the peer."""
    world = await world_of(Settings(trusted_proxies=trusted, access_log=True))

    with caplog.at_level(logging.INFO, "openai_frontend.access_log"):
        await world.client.get("/v1/models", headers={"x-forwarded-for": "203.0.113.9"})

    assert f"client={client}" in caplog.text
