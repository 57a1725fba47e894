"""Clients that hang up on a model that goes on: what Triton has of them keeps counting."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from openai_frontend.triton import _core
from tests.models.conftest import Live, LiveGateway
from tests.triton import python_models
from tests.triton.waiting import until

pytestmark = pytest.mark.slow  # the stub's start

PATIENCE_S = 0.3
TEXT = "x" * 100_000
BODY = {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]}
DEAF = """
import pathlib, time

def answer(given):
    while not pathlib.Path(%r).exists():  # and never asks whether it is cancelled
        time.sleep(0.01)
    return given
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Once this file exists the model answers."""
    return tmp_path / "gate"


@pytest.fixture
async def gateway(repository: Path, live_gateway: Live, gate: Path) -> AsyncIterator[LiveGateway]:
    python_models.write(repository, "deaf", answer=DEAF % str(gate))
    async with live_gateway(max_streams=2, max_queue=0, max_held_body_bytes=350_000) as gateway:
        yield gateway
        gate.touch()  # noqa: ASYNC240  a file that is there at once
        await until(lambda: not _core.live_counts()["requests"])


async def ask(gateway: LiveGateway) -> int:
    """The status; 0 where the client hung up."""
    try:
        answer = await gateway.client.post("/v2/models/deaf/infer", json=BODY, timeout=PATIENCE_S)
    except httpx.ReadTimeout:
        return 0
    return answer.status_code


async def test_requests_inside_triton(gateway, gate):
    """They are never more than the server's places, however often clients hang up and come again;
    the places come back when Triton releases the requests.
    """
    answers = [await ask(gateway) for _ in range(6)]

    assert answers == [0, 0, 503, 503, 503, 503]
    assert _core.live_counts()["requests"] == 2

    gate.touch()
    await until(lambda: not _core.live_counts()["requests"])
    await until(lambda: not gateway.lasting.admission.unreleased)
    assert await ask(gateway) == 200


async def test_memory_of_their_inputs(gateway, gate):
    """It counts against the bound on bodies until Triton releases it."""
    bodies = gateway.lasting.bodies
    await asyncio.gather(ask(gateway), ask(gateway))
    await until(lambda: gateway.lasting.admission.unreleased == 2)

    assert bodies.held >= 2 * len(TEXT)
    gate.touch()
    await until(lambda: bodies.held == 0)


async def test_metric(gateway):
    """Operators see for which model Triton works though its clients have gone."""
    await ask(gateway)
    await until(lambda: gateway.lasting.admission.unreleased == 1)

    lines = (await gateway.client.get("/metrics")).text.splitlines()
    assert 'openai_frontend_unreleased_requests{model="deaf"} 1.0' in lines
