"""A gateway that runs out of memory refuses what it cannot do and serves the rest."""

import asyncio
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.gateway_process import GatewayProcess
from tests.resilience.faults.asking import client_of, slow_gateway
from tests.resilience.faults.invariants import MIB, no_trace_left
from tests.resilience.faults.raw_stream import RawStream, tokens

pytestmark = pytest.mark.slow

LARGE = {"model": "slow", "prompt": ["a few words " * 100] * 7000}  # 8 MiB; too many prompts
TOKEN_IDS = {"model": "slow", "prompt": [70_000] * 10**6}  # 7 MiB, parsed more than 100; too many
SMALL = {"model": "slow", "prompt": "a", "max_tokens": 2}
CLOSED = 0  # instead of a status
TOKENS = 60  # of a stream, at 20 per second


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with slow_gateway(tmp_path) as process:
        yield process


@pytest.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(gateway) as made:
        for body, status in (
            (SMALL, 200),
            (LARGE, 400),
        ):  # create now what the first request creates
            assert await status_of(made, body) == status
        yield made


@contextmanager
def no_more_than(room_bytes: int, gateway: GatewayProcess) -> Iterator[None]:
    """Limit the address space of the process to its present size plus `room_bytes`; afterwards
    remove the limit.
    """
    most = psutil.Process(gateway.pid).memory_info().vms + room_bytes
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(gateway.pid, resource.RLIMIT_AS, (most, unlimited))
    yield
    if psutil.pid_exists(gateway.pid):
        resource.prlimit(gateway.pid, resource.RLIMIT_AS, (unlimited, unlimited))


async def status_of(client: httpx.AsyncClient, body: dict[str, Any]) -> int:
    try:
        response = await client.post("/v1/completions", json=body)
    except httpx.TransportError:
        return CLOSED
    if response.status_code == 503:
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["code"] == "server_overloaded"
    return response.status_code


async def statuses(client: httpx.AsyncClient, body: dict[str, Any], count: int) -> set[int]:
    return set(await asyncio.gather(*[status_of(client, body) for _ in range(count)]))


async def test_large_bodies_get_503_when_memory_runs_out(gateway, client):
    """The 503 has Retry-After; alternatively the connection is closed. Running streams and small
    requests are not affected. With memory available again, the server reads large bodies again.
    """
    async with (
        asyncio.timeout(300),
        no_trace_left(
            gateway,
            deadline_s=60,
            growth_bytes=96 * MIB,
            may_log=["Traceback (most recent call last)"],
        ),
    ):
        running = [await RawStream.begun(gateway.port, "slow", TOKENS) for _ in range(3)]
        with no_more_than(48 * MIB, gateway):
            alone = await status_of(client, TOKEN_IDS)
            large, small = await asyncio.gather(
                statuses(client, TOKEN_IDS, 8), statuses(client, SMALL, 16)
            )
        rest = await asyncio.gather(*[stream.rest() for stream in running])

        assert alone == 503
        assert large <= {503, CLOSED}
        assert small == {200}
        assert [tokens(each) for each in rest] == [TOKENS] * 3
        assert await status_of(client, TOKEN_IDS) == 400


async def test_the_gateway_recovers_or_exits_when_no_memory_is_left(gateway, client):
    """Either it serves again once memory is available, or it exits with a nonzero code, so that a
    supervisor restarts it, and its log shows where it stopped.
    """
    async with asyncio.timeout(300):
        with no_more_than(0, gateway):
            seen = await statuses(client, LARGE, 8) | await statuses(client, SMALL, 200)
        assert seen <= {200, 400, 500, 503, CLOSED}
        if gateway.ended():
            assert gateway.wait() != 0
            assert "Fatal Python error" in gateway.output() or "memory" in gateway.output()
        else:
            assert await statuses(client, SMALL, 8) == {200}
            assert await status_of(client, LARGE) == 400
            assert gateway.stop() == 0
