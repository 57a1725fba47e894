"""Memory over many requests: OPENAI_FRONTEND_MEMORY_REQUESTS=100000 for the long run (a minute)."""

import asyncio
import os

import psutil
import pytest

from tests import mock_models
from tests.triton.generation_inputs import generation

pytestmark = pytest.mark.skipif(
    "ASAN_OPTIONS" in os.environ, reason="AddressSanitizer keeps freed memory for a while"
)

MIB = 1024 * 1024
REQUESTS = int(os.environ.get("OPENAI_FRONTEND_MEMORY_REQUESTS", "5000"))
AT_ONCE = 50


def resident_bytes():
    return psutil.Process().memory_info().rss


async def growth(server, requests, keep):
    """How much the process grows from the middle of the run to its end; `keep` gets each burst."""

    async def client(number):
        for _ in range(number):
            async for burst in server.infer("mock", generation(max_tokens=4)):
                keep(burst)

    half = requests // 2 // AT_ONCE
    await asyncio.gather(*(client(half) for _ in range(AT_ONCE)))
    middle = resident_bytes()
    await asyncio.gather(*(client(half) for _ in range(AT_ONCE)))
    return resident_bytes() - middle


@pytest.fixture
async def long_texts(repository, start_server):
    """A core whose tokens are of some size, so that one that is kept shows."""
    mock_models.write(repository, "mock", tokens=["x" * 1024])
    return await start_server()


async def test_memory_is_flat(long_texts):
    """Requests leave nothing behind: their second half needs no more memory than the first."""
    assert await growth(long_texts, REQUESTS, keep=lambda _: None) < 10 * MIB


async def test_a_leak_would_show(long_texts):
    """The check above sees a leak: responses that are kept make the process grow."""
    kept: list[object] = []

    assert await growth(long_texts, REQUESTS, keep=kept.append) > 10 * MIB
