"""Requests and metrics that the fault tests use on a separate gateway process."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests import mock_models
from tests.gateway_process import GatewayProcess

DEADLINE_S = 120  # for any operation: a longer one hangs


def chat(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}


@contextmanager
def slow_gateway(folder: Path) -> Iterator[GatewayProcess]:
    """Start a gateway with the model `slow`, at 20 tokens per second, and wait until ready."""
    mock_models.write_with_tokenizer(folder / "models", "slow", tokens_per_second=20)
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        yield process


def load_all_again(gateway: GatewayProcess, models: Sequence[str]) -> None:
    """Unload and load models at once, which starts all threads of the pool that loads them."""
    for verb in ("unload", "load"):
        urls = [f"{gateway.url}/v1/models/{each}/{verb}" for each in models]
        with ThreadPoolExecutor() as threads:
            changes = [threads.submit(httpx.post, each, timeout=DEADLINE_S) for each in urls]
        assert [each.result().status_code for each in changes] == [200] * len(models)


@asynccontextmanager
async def client_of(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"connection": "close"}  # an idle connection would count as a leaked descriptor
    async with httpx.AsyncClient(
        base_url=gateway.url, timeout=DEADLINE_S, headers=headers
    ) as client:
        yield client


@asynccontextmanager
async def events_of(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> AsyncIterator[AsyncIterator[str]]:
    """Yield the data of each event of a stream."""
    async with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        yield (line[6:] async for line in response.aiter_lines() if line.startswith("data: "))


async def chat_events(client: httpx.AsyncClient, model: str, **fields: Any) -> list[str]:
    """Return the data of all events of a streamed chat."""
    body = chat(model, stream=True, **fields)
    async with events_of(client, "/v1/chat/completions", body) as events:
        return [event async for event in events]


def error_of(last_event: str) -> Any:
    return json.loads(last_event)["error"]


async def unready(client: httpx.AsyncClient) -> dict[str, str]:
    """Return a map of model to the reason why it cannot serve."""
    models: dict[str, str] = (await client.get("/health/ready")).json().get("models", {})
    return models


async def serves(client: httpx.AsyncClient, model: str) -> bool:
    return model not in await unready(client)


async def until(true: Callable[[], Awaitable[bool]], within_s: float = DEADLINE_S) -> float:
    """Wait until the condition is true; return the seconds that took."""
    began_s = time.monotonic()
    async with asyncio.timeout(within_s):
        while not await true():  # noqa: ASYNC110  another process gives no event
            await asyncio.sleep(0.05)
    return time.monotonic() - began_s


async def counted(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples with these labels."""
    text = (await client.get("/metrics")).text
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return sum(
        sample.value
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def starts(client: httpx.AsyncClient, model: str) -> float:
    return await counted(client, "openai_frontend_engine_restarts_total", model=model)


async def slots(client: httpx.AsyncClient) -> float:
    """Taken by requests that run, or wait in an engine."""
    names = ("openai_frontend_load_running", "openai_frontend_load_waiting")
    return sum([await counted(client, each) for each in names])


async def none_runs(client: httpx.AsyncClient) -> bool:
    return await slots(client) == 0


async def change(client: httpx.AsyncClient, model: str, verb: str) -> int:
    """The status of a load or unload of a model."""
    return (await client.post(f"/v1/models/{model}/{verb}")).status_code
