"""The names of an identity provider and a trace collector do not resolve for a long time."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import mock_models
from tests.fast.auth import key_files, tokens
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.asking import client_of
from tests.resilience.faults.invariants import no_trace_left
from tests.resilience.faults.world import World

pytestmark = pytest.mark.slow

KEY = "sk-known"
BODY = {"model": "fast", "prompt": "a", "max_tokens": 2}
NEVER_S = 3600
ROUNDS = 4
TO_SEND_S = 6  # the exporter's time limit for its last spans (tracing/exporter.py)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def gateway(tmp_path: Path, world: World) -> Iterator[GatewayProcess]:
    """Gets signing keys from a provider and sends traces to a collector, both by name."""
    models = tmp_path / "models"
    mock_models.write_with_tokenizer(models, "fast")
    mock_models.write_with_tokenizer(models, "slow", tokens_per_second=20)
    keys = key_files.write(tmp_path / "keys.yaml", key_files.key("known", secret=KEY))
    world.resolve_in(NEVER_S)
    with (
        world.within(),
        GatewayProcess(
            models,
            tmp_path / "log",
            f"--keys-file={keys}",
            "--jwks=https://provider.test/keys",
            f"--jwt-issuer={tokens.ISSUER}",
            f"--jwt-audience={tokens.AUDIENCE}",
            "--otlp-endpoint=http://collector.test:4318",
        ) as process,
    ):
        process.wait_until_ready()
        yield process


async def test_unresolved_names_delay_neither_requests_nor_shutdown(
    gateway: GatewayProcess,
) -> None:
    """The gateway also starts without them."""
    headers = key_files.bearer(KEY)
    async with asyncio.timeout(300), client_of(gateway) as client:
        client.headers.update(headers)
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        async with no_trace_left(gateway, headers=headers):
            # The best of some rounds: other work on the machine delays requests too
            for _ in range(ROUNDS):
                taken = await asyncio.gather(*[_taken(client) for _ in range(50)])
                if sorted(taken)[25] < 5:
                    break
            unknown = await client.get("/v1/models", headers=key_files.bearer(_token()))
        assert sorted(taken)[25] < 5
        assert unknown.status_code == 401

        began_s = time.monotonic()
        assert await asyncio.to_thread(gateway.stop) == 0
        assert time.monotonic() - began_s < 3 * TO_SEND_S
    assert "getaddrinfo" not in gateway.output()  # the watchdog logs a call that blocks the loop


async def test_a_failed_lookup_of_the_provider_is_logged(
    gateway: GatewayProcess, world: World
) -> None:
    """The log names the URL of the signing keys; the gateway retries the fetch."""
    world.resolve_in(0)

    line = await asyncio.to_thread(gateway.wait_for_line, "the previous signing keys stay in force")

    assert "https://provider.test/keys" in line


async def _taken(client: httpx.AsyncClient) -> float:
    """Return the seconds until the answer."""
    began_s = time.monotonic()
    response = await client.post("/v1/completions", json=BODY)
    assert response.status_code == 200
    return time.monotonic() - began_s


def _token() -> str:
    return tokens.token().decode()
