"""A gateway that gets no more memory: what cannot be done is refused, and the rest goes on."""

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
SMALL = {"model": "slow", "prompt": "a", "max_tokens": 2}
CLOSED = 0  # in place of a status
TOKENS = 60  # of a stream, 20 in a second


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with slow_gateway(tmp_path) as process:
        yield process


@pytest.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(gateway) as made:
        for body, status in ((SMALL, 200), (LARGE, 400)):  # what is made at the first is made now
            assert await status_of(made, body) == status
        yield made


@contextmanager
def no_more_than(room_bytes: int, gateway: GatewayProcess) -> Iterator[None]:
    """The process may map so much more than it has; then as much as it likes again."""
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


async def test_no_memory_for_large_bodies(gateway, client):
    """They get 503 with a word when to come again, or their connection is closed; streams that run
    and small requests notice nothing. With memory again large ones are read again.
    """
    async with (
        asyncio.timeout(60),
        no_trace_left(
            gateway,
            deadline_s=20,
            growth_bytes=96 * MIB,
            may_log=["Traceback (most recent call last)"],
        ),
    ):
        running = [await RawStream.begun(gateway.port, "slow", TOKENS) for _ in range(3)]
        with no_more_than(48 * MIB, gateway):
            large, small = await asyncio.gather(
                statuses(client, LARGE, 8), statuses(client, SMALL, 16)
            )
        rest = await asyncio.gather(*[stream.rest() for stream in running])

        assert 503 in large
        assert large <= {503, CLOSED}
        assert small == {200}
        assert [tokens(each) for each in rest] == [TOKENS] * 3
        assert await status_of(client, LARGE) == 400


async def test_no_memory_at_all(gateway, client):
    """Whatever is asked, the process serves again once there is memory; or it has ended by itself
    with a code that has a supervisor start it again, and its log says where it was.
    """
    async with asyncio.timeout(60):
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
