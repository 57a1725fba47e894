"""The wall clock of a running gateway jumps by hours, and nothing that waits is affected."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests import mock_models
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.asking import chat, chat_events, client_of, error_of
from tests.resilience.faults.invariants import no_trace_left
from tests.resilience.faults.world import World
from tests.unit.auth import key_files

pytestmark = pytest.mark.slow

HOURS = 3600
KEY = "sk-known"
COUNTED = "sk-two-a-minute"
TOKENS = 30  # of a stream, at 20 per second
MODELS = {
    "slow": ({"tokens_per_second": 20}, "max_concurrent_requests: 1\n"),
    "hangs": ({"hang_after_tokens": 2, "hang_s": 3}, "inter_token_timeout_s: 1\n"),
    "other": ({"tokens_per_second": 20}, "max_concurrent_requests: 1\nqueue_timeout_s: 1\n"),
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    counted = key_files.key("counted", secret=COUNTED, requests_per_minute=2)
    path = tmp_path / "keys.yaml"
    return key_files.write(path, key_files.key("known", secret=KEY), counted)


@pytest.fixture
def gateway(tmp_path: Path, world: World, keys: Path) -> Iterator[GatewayProcess]:
    for name, (arguments, its_own) in MODELS.items():
        mock_models.write_with_tokenizer(tmp_path / "models", name, tasks=["generate"], **arguments)
        (tmp_path / "models" / name / "openai_frontend.yaml").write_text(its_own)
    options = [f"--keys-file={keys}", "--no-strict-readiness"]
    with world.within(), GatewayProcess(tmp_path / "models", tmp_path / "log", *options) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(gateway) as made:
        made.headers.update(key_files.bearer(KEY))
        yield made


async def answer(client: httpx.AsyncClient, model: str, tokens: int) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=chat(model, max_tokens=tokens))


async def refusal(client: httpx.AsyncClient) -> httpx.Response:
    """Exceed the requests per minute of a key and return the last response."""
    body, headers = chat("slow", max_tokens=1), key_files.bearer(COUNTED)
    for _ in range(3):
        told = await client.post("/v1/chat/completions", json=body, headers=headers)
    return told


@pytest.mark.parametrize("hours", [5, -5], ids=["forward", "back"])
async def test_a_clock_jump_changes_only_created(
    gateway: GatewayProcess, client: httpx.AsyncClient, world: World, keys: Path, hours: int
) -> None:
    """Streams, both kinds of queues, watchdogs, rate limits and reloaded keys are not affected."""
    async with asyncio.timeout(90), no_trace_left(gateway, headers=key_files.bearer(KEY)):
        assert (await answer(client, "slow", 1)).status_code == 200
        assert (await refusal(client)).status_code == 429
        began_s = time.monotonic()
        stream = asyncio.create_task(chat_events(client, "slow", max_tokens=TOKENS))
        busy = asyncio.create_task(answer(client, "other", 3 * TOKENS))
        stuck = asyncio.create_task(chat_events(client, "hangs", max_tokens=20))
        await asyncio.sleep(0.5)
        waiting = asyncio.create_task(answer(client, "slow", 1))
        too_late = asyncio.create_task(answer(client, "other", 1))
        await asyncio.sleep(0.2)

        world.jump(hours * HOURS)

        assert (await waiting).status_code == 200
        assert (await stream)[-1] == "[DONE]"
        assert len(await stream) >= TOKENS
        assert (await too_late).json()["error"]["code"] == "queue_timeout"
        assert error_of((await stuck)[-1])["code"] == "engine_stalled"
        assert (await busy).status_code == 200
        created = (await answer(client, "slow", 1)).json()["created"]
        assert abs(created - time.time() - hours * HOURS) < 60
        assert 3 < time.monotonic() - began_s < 30

        told = await refusal(client)
        assert (told.status_code, told.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(told.headers["retry-after"]) <= 60
        key_files.write(keys, key_files.key("known", secret=KEY), key_files.key("new"))
        await until_let_in(client, "new")
    assert "is blocked" not in gateway.output()
    assert "no thread ran" not in gateway.output()


async def until_let_in(client: httpx.AsyncClient, key: str) -> None:
    async with asyncio.timeout(20):
        while True:
            told = await client.get("/v1/models", headers=key_files.bearer(key))
            if told.status_code == 200:
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("hours", [5, -5], ids=["forward", "back"])
async def test_a_clock_jump_does_not_affect_draining(
    gateway: GatewayProcess, client: httpx.AsyncClient, world: World, hours: int
) -> None:
    """Running requests finish, and the process exits as soon as none runs."""
    async with asyncio.timeout(60):
        stream = asyncio.create_task(chat_events(client, "slow", max_tokens=TOKENS))
        await asyncio.sleep(0.5)
        gateway.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)

        world.jump(hours * HOURS)

        assert (await stream)[-1] == "[DONE]"
        assert await asyncio.to_thread(gateway.wait) == 0
