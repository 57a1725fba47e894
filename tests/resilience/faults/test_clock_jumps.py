"""The wall clock of a running gateway jumps by hours, and nothing that waits is affected."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests import mock_models
from tests.fast.auth import key_files
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.asking import chat, chat_events, client_of, error_of, events_of
from tests.resilience.faults.invariants import no_trace_left
from tests.resilience.faults.world import World

pytestmark = pytest.mark.slow

HOURS = 3600
KEY = "sk-known"
COUNTED = "sk-two-a-minute"
STALLED = re.compile(r"(?:event loop blocked for|resumed after|no thread ran for) ([\d.]+) s")
TOKENS, LONG = 30, 4000  # of a stream, at 20 per second
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
    async with asyncio.timeout(300), no_trace_left(gateway, headers=key_files.bearer(KEY)):
        assert (await answer(client, "slow", 1)).status_code == 200
        assert (await refusal(client)).status_code == 429
        began_s = time.monotonic()
        async with (
            begun(client, "slow", max_tokens=TOKENS) as stream,
            begun(client, "other", max_tokens=LONG) as busy,  # has the slot until the test leaves
        ):
            stuck = asyncio.create_task(chat_events(client, "hangs", max_tokens=20))
            waiting = asyncio.create_task(answer(client, "slow", 1))
            too_late = asyncio.create_task(answer(client, "other", 1))
            await asyncio.sleep(0.2)

            world.jump(hours * HOURS)

            assert (await waiting).status_code == 200
            events = [event async for event in stream]
            assert events[-1] == "[DONE]"
            assert len(events) >= TOKENS
            assert (await too_late).json()["error"]["code"] == "queue_timeout"
            assert error_of((await stuck)[-1])["code"] == "engine_stalled"
            assert "[DONE]" not in [await anext(busy) for _ in range(2 * TOKENS)]
            assert 3 < time.monotonic() - began_s < HOURS
        created = (await answer(client, "slow", 1)).json()["created"]
        assert abs(created - time.time() - hours * HOURS) < HOURS / 2

        told = await refusal(client)
        assert (told.status_code, told.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(told.headers["retry-after"]) <= 60
        key_files.write(keys, key_files.key("known", secret=KEY), key_files.key("new"))
        await until_let_in(client, "new")
    # The watchdog of the event loop counts no jump; on a busy machine it may count seconds
    assert all(float(each) < HOURS for each in STALLED.findall(gateway.output()))


@asynccontextmanager
async def begun(
    client: httpx.AsyncClient, model: str, *, max_tokens: int
) -> AsyncIterator[AsyncIterator[str]]:
    """A streamed chat whose first events have arrived: those that follow."""
    body = chat(model, stream=True, max_tokens=max_tokens)
    async with events_of(client, "/v1/chat/completions", body) as events:
        await anext(events)
        yield events


async def until_let_in(client: httpx.AsyncClient, key: str) -> None:
    async with asyncio.timeout(120):
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
    async with asyncio.timeout(300), begun(client, "slow", max_tokens=TOKENS) as stream:
        gateway.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)

        world.jump(hours * HOURS)

        assert [event async for event in stream][-1] == "[DONE]"
        assert await asyncio.to_thread(gateway.wait) == 0
