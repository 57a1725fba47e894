"""Clients disconnect while the model continues: their requests still count until Triton has
released them and the model has sent its last response.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.auth.rate_limit import RateLimiter
from openai_frontend.triton import _core
from tests.api.models.conftest import Live, LiveGateway
from tests.core.triton import python_models
from tests.core.triton.waiting import until
from tests.fast.auth import key_files
from tests.fast.prompting import tiny_tokenizer

pytestmark = pytest.mark.slow  # the stub's start

TEXT = "x" * 100_000
BODY = {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]}
ON_DEMAND: dict[str, Any] = {
    "model_control_mode": "explicit", "load_on_demand": True, "max_loaded_models": 1,
}  # fmt: skip
DEAF = """
import pathlib, time

def answer(given):
    while not pathlib.Path(%r).exists():  # and never asks whether it is cancelled
        time.sleep(0.01)
    return given
"""

WORK = """
import pathlib, time

def work(is_cancelled):
    gate = pathlib.Path(%r)
    gate.with_name("begun").touch()
    while not (is_cancelled() and %s) and not gate.exists():
        time.sleep(0.01)
    gate.with_name("ended").touch()
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Once this file exists the model answers."""
    return tmp_path / "gate"


@pytest.fixture
def deaf(repository: Path, live_gateway: Live, gate: Path) -> Live:
    """Starts a gateway with the model, which ends its requests when the test is over."""

    python_models.write(repository, "deaf", answer=DEAF % str(gate))

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[LiveGateway]:
        async with live_gateway(**settings) as gateway:
            try:
                yield gateway
            finally:
                gate.touch()  # noqa: ASYNC240  a file that is there at once
                await until(lambda: not _core.live_counts()["requests"])

    return start


@pytest.fixture
async def gateway(deaf: Live) -> AsyncIterator[LiveGateway]:
    async with deaf(
        max_concurrent_requests=2, max_queue_size=0, max_buffered_body_bytes=350_000
    ) as gateway:
        yield gateway


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    """One key may have a single request at work, another one 1,200 tokens."""
    single = key_files.key("single", max_concurrent_requests=1)
    counted = key_files.key("counted", tokens_per_minute=1200)
    return key_files.write(tmp_path / "keys.yaml", single, counted)


def quota(gateway: LiveGateway, key: str) -> RateLimiter:
    assert gateway.state.authenticator is not None
    return gateway.state.authenticator.api_keys.authenticate(key.encode()).rate_limiter


async def disconnect(gateway: LiveGateway, model: str, begun: Path) -> None:
    """Sends a streamed request, and disconnects before the first response."""
    body = {"text_input": "x", "IN": ["x"]}
    path = f"/v2/models/{model}/generate_stream"
    asking = asyncio.create_task(gateway.client.post(path, json=body))
    await until(begun.exists)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def ask(gateway: LiveGateway, key: str = "any") -> int:
    """The status; 0 where the client hung up, as it does once the request is at work."""
    before = _core.live_counts()["requests"]
    asking = asyncio.create_task(send(gateway, key))
    await until(lambda: asking.done() or _core.live_counts()["requests"] > before)
    if asking.done():
        return asking.result()
    asking.cancel()
    await asyncio.wait([asking])
    return 0


async def send(gateway: LiveGateway, key: str = "any", model: str = "deaf") -> int:
    """The status of a request whose client waits for it."""
    path, headers = f"/v2/models/{model}/infer", key_files.bearer(key)
    return (await gateway.client.post(path, json=BODY, headers=headers)).status_code


async def test_concurrent_requests(gateway, gate):
    """They never exceed the server's limit, however often clients disconnect and retry."""
    answers = [await ask(gateway) for _ in range(6)]

    assert answers == [0, 0, 503, 503, 503, 503]
    assert _core.live_counts()["requests"] == 2

    gate.touch()
    await until(lambda: not _core.live_counts()["requests"])
    await until(lambda: not gateway.state.limiter.unreleased)
    assert await send(gateway) == 200


async def test_input_memory(gateway, gate):
    """It counts against the limit of buffered bodies until Triton releases it; a metric says so."""
    bodies = gateway.state.body_memory
    assert [await ask(gateway) for _ in range(2)] == [0, 0]
    await until(lambda: gateway.state.limiter.unreleased == 2)

    assert bodies.used_bytes >= 2 * len(TEXT)
    lines = (await gateway.client.get("/metrics")).text.splitlines()
    assert f"openai_frontend_buffered_body_bytes {bodies.used_bytes:.1f}" in lines
    gate.touch()
    await until(lambda: bodies.used_bytes == 0)


async def test_metric(gateway):
    """Operators see which models run requests of disconnected clients."""
    await ask(gateway)
    await until(lambda: gateway.state.limiter.unreleased == 1)

    lines = (await gateway.client.get("/metrics")).text.splitlines()
    assert 'openai_frontend_unreleased_requests{model="deaf"} 1.0' in lines


async def test_requests_per_key(deaf, gate, keys_file):
    """They never exceed the key's limit, however often its client disconnects."""
    async with deaf(keys_file=keys_file) as gateway:
        answers = [await ask(gateway, "single") for _ in range(3)]

        assert answers == [0, 429, 429]
        assert _core.live_counts()["requests"] == 1
        gate.touch()
        await until(lambda: not quota(gateway, "single").running)
        assert await send(gateway, "single") == 200


async def test_tokens_per_key(deaf, gate, repository, keys_file):
    """The reservation of a failed request is returned when Triton releases the request."""
    options = f"tokenizer: {tiny_tokenizer.write(repository.parent / 'tokenizer')}"
    (repository / "deaf" / "openai_frontend.yaml").write_text(options)
    async with deaf(
        keys_file=keys_file, first_token_timeout_s=0.3, engine_max_restarts=0
    ) as gateway:
        body = {"model": "deaf", "messages": [{"role": "user", "content": "hi"}]}
        headers = key_files.bearer("counted")
        answer = await gateway.client.post("/v1/chat/completions", json=body, headers=headers)

        assert answer.status_code == 504, answer.text
        [tokens] = quota(gateway, "counted").statuses()
        assert tokens.remaining < 600
        gate.touch()
        await until(lambda: quota(gateway, "counted").statuses()[0].remaining > 1100)


async def test_model_without_clients(deaf, gate, repository):
    """It is not evicted before Triton has released its requests."""
    python_models.write(repository, "other")
    async with deaf(**ON_DEMAND) as gateway:
        await gateway.registry.ensure_loaded("deaf")
        assert await ask(gateway) == 0
        await until(lambda: gateway.state.limiter.unreleased == 1)

        waiting = asyncio.create_task(send(gateway, model="other"))
        demand: Any = gateway.registry.use("other")._uses.demand
        await until(lambda: "other" in demand._loads)
        await asyncio.sleep(0.3)
        assert (waiting.done(), gateway.registry.state("deaf")) == (False, "READY")
        waiting.cancel()
        gate.touch()
        await gateway.registry.ensure_loaded("other")
        assert gateway.registry.loaded() == {"other"}


async def test_cancel_after_the_release(deaf, gate, repository):
    """A decoupled model learns of the disconnect although Triton released its request before."""
    python_models.write_decoupled(repository, "asks", work=WORK % (str(gate), True))
    async with deaf() as gateway:
        await disconnect(gateway, "asks", gate.with_name("begun"))

        await until(gate.with_name("ended").exists)
        assert not gate.exists()  # only the cancellation has ended it
        await until(lambda: not gateway.state.limiter.unreleased)


async def test_decoupled_model_that_continues(deaf, gate, repository):
    """It counts until the model has sent its last response, not until Triton's early release."""
    python_models.write_decoupled(repository, "continues", work=WORK % (str(gate), False))
    async with deaf(max_concurrent_requests=1, max_queue_size=0) as gateway:
        await disconnect(gateway, "continues", gate.with_name("begun"))
        await until(lambda: gateway.state.limiter.unreleased == 1)

        assert await ask(gateway) == 503
        gate.touch()
        await until(lambda: not gateway.state.limiter.unreleased)
        assert await send(gateway) == 200
