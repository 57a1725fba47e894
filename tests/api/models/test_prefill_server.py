"""The listener of a prefill server, over the real core and a mock engine that keeps KV caches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_frontend.app import create_transfer_app
from openai_frontend.config.settings import Settings
from openai_frontend.engines.engine import DeltaSink
from openai_frontend.engines.mock import MockEngine
from openai_frontend.generation import GenerationRequest, KVTransfer
from openai_frontend.models.remote_prefill import prompt_digest
from tests import mock_models
from tests.api.models.conftest import Live, LiveGateway
from tests.fast.auth.key_files import bearer, key, write

BODY: dict[str, Any] = {"model": "mock", "prompt_token_ids": [1, 2, 3], "cache_salt": "s"}


@asynccontextmanager
async def listener(
    repository: Path, live_gateway: Live, **keys: Any
) -> AsyncIterator[tuple[LiveGateway, httpx.AsyncClient]]:
    """A client of the internal listener, and the gateway behind it."""
    keys_file = write(
        repository.parent / "keys.yaml",
        key("decode", scopes=frozenset({"transfer"}), **keys),
        key("client", scopes=frozenset({"inference", "models", "metrics", "admin"})),
    )
    settings: dict[str, Any] = {"role": "prefill", "keys_file": keys_file}
    async with live_gateway(**settings) as gateway:
        transport = httpx.ASGITransport(create_transfer_app(Settings(**settings), gateway.state))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://internal", headers=bearer("decode")
        ) as client:
            yield gateway, client


async def test_prompt_is_computed_for_one_token(repository: Path, live_gateway: Live) -> None:
    """The reply has the engine's parameters, its lease and the digest of what was computed."""
    mock_models.write(repository, "mock", kv_role="kv_producer", kv_lease_s=9)
    async with listener(repository, live_gateway) as (_, client):
        response = await client.post("/internal/prefill", json=BODY)
        health = await client.get("/internal/health")

    assert response.status_code == 200
    answer = response.json()
    assert answer["digest"] == prompt_digest([1, 2, 3], model="mock", adapter=None, cache_salt="s")
    assert (answer["lease_s"], answer["kv_transfer_params"]["do_remote_prefill"]) == (9, True)
    assert 0 <= answer["prefill_s"] < 30
    assert (health.status_code, health.json()) == (200, {"status": "ready"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"authorization": ""}, 401), (bearer("x"), 401), (bearer("client"), 403)],
)
async def test_keys_without_the_scope(
    repository: Path, live_gateway: Live, headers: dict[str, str], status: int
) -> None:
    """Neither compute prompts nor learn whether the server is healthy."""
    mock_models.write(repository, "mock", kv_role="kv_producer")
    async with listener(repository, live_gateway) as (_, client):
        asked = await client.post("/internal/prefill", json=BODY, headers=headers)
        health = await client.get("/internal/health", headers=headers)

    assert (asked.status_code, health.status_code) == (status, status)


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"model": "nope"}, 404, "model"),
        ({"adapter": "nope"}, 404, "model"),
        ({"prompt_token_ids": []}, 400, "prompt_token_ids"),
        ({"prompt_token_ids": [-1]}, 400, "prompt_token_ids"),
        ({"prompt_token_ids": "text"}, 400, "prompt_token_ids"),
        ({"prompt_token_ids": [1] * 5000}, 400, None),  # the engine's context is 4096
        ({"kv_transfer_params": {}}, 400, "kv_transfer_params"),
        ({"cache_salt": "s" * 5000}, 400, "cache_salt"),
    ],
    ids=str,
)
async def test_invalid_requests_are_refused(
    repository: Path, live_gateway: Live, changes: dict[str, Any], status: int, param: str | None
) -> None:
    mock_models.write(repository, "mock", kv_role="kv_producer")
    async with listener(repository, live_gateway) as (_, client):
        response = await client.post("/internal/prefill", json=BODY | changes)

    assert response.status_code == status, response.text
    assert param is None or str(response.json()["error"]["param"]).startswith(param)


async def test_key_allows_only_its_models(repository: Path, live_gateway: Live) -> None:
    mock_models.write(repository, "mock", kv_role="kv_producer")
    async with listener(repository, live_gateway, models=["other"]) as (_, client):
        assert (await client.post("/internal/prefill", json=BODY)).status_code == 404


async def test_listeners_share_no_route(repository: Path, live_gateway: Live) -> None:
    """Decode servers and clients reach only their own."""
    mock_models.write(repository, "mock", kv_role="kv_producer")
    async with listener(repository, live_gateway) as (gateway, client):
        public = await gateway.client.post("/internal/prefill", json=BODY, headers=bearer("decode"))
        internal = await client.get("/v1/models")

    assert (public.status_code, internal.status_code) == (404, 404)


async def test_metrics_need_their_scope(repository: Path, live_gateway: Live) -> None:
    """They are on the internal listener too, for servers that have no public one."""
    mock_models.write(repository, "mock", kv_role="kv_producer")
    async with listener(repository, live_gateway) as (_, client):
        read = await client.get("/metrics", headers=bearer("client"))
        refused = await client.get("/metrics")

    assert "openai_frontend_load_running" in read.text
    assert refused.status_code == 403


async def test_draining_server_takes_no_prompts(repository: Path, live_gateway: Live) -> None:
    """And reports it, so decode servers ask others."""
    mock_models.write(repository, "mock", kv_role="kv_producer")
    async with listener(repository, live_gateway) as (gateway, client):
        gateway.state.drain_state.drain()

        assert (await client.get("/internal/health")).status_code == 503
        assert (await client.post("/internal/prefill", json=BODY)).status_code == 503


@pytest.mark.parametrize(
    ("kv_role", "problem"),
    [
        (None, "role prefill needs kv_transfer_config in model.json"),
        ("kv_consumer", "set it to kv_producer or kv_both"),
    ],
)
async def test_model_that_does_not_fit_the_role_is_not_served(
    repository: Path, live_gateway: Live, kv_role: str | None, problem: str
) -> None:
    """Its card says what to do."""
    mock_models.write(repository, "mock", kv_role=kv_role)
    async with listener(repository, live_gateway) as (gateway, client):
        assert problem in gateway.registry.unready()["mock"]
        assert (await client.post("/internal/prefill", json=BODY)).status_code == 503


async def test_rejected_transfer_reaches_the_engine(
    repository: Path, live_gateway: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which generates nothing: the request ends at once."""
    received: list[GenerationRequest] = []
    generate = MockEngine.generate

    def recorded(self: MockEngine, request: GenerationRequest, sink: DeltaSink) -> Any:
        received.append(request)
        return generate(self, request, sink)

    monkeypatch.setattr(MockEngine, "generate", recorded)
    mock_models.write(repository, "mock", kv_role="kv_both", tokens_per_second=1)
    async with live_gateway() as gateway, asyncio.timeout(30):
        transfer = KVTransfer(params={"do_remote_prefill": True}, rejected=True)
        await gateway.registry.get("mock").reject_transfer(transfer)
        running = gateway.registry.engine_gauges()[0]["running"]

    assert [each.kv_transfer for each in received] == [transfer]
    assert running == 0
