"""Token limits of a key while the server runs its maximum of concurrent requests."""

import asyncio
import contextlib
from typing import Any

import pytest

from openai_frontend.admission.queue import ConcurrencyLimits
from openai_frontend.config.settings import Settings
from tests.core.triton.waiting import until
from tests.fast.auth.key_files import bearer, key, write
from tests.fast.serving.fake_pooling_model import FakePoolingModel

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 90},
    "/v1/completions": {"prompt": "hi", "max_tokens": 90},
    "/v1/embeddings": {"input": "a" * 90},
    "/v1/score": {"text_1": "a" * 90, "text_2": "b"},
}
paths = pytest.mark.parametrize("path", BODIES)


@pytest.fixture
async def full(world_of, tmp_path):
    """A server whose only slot is in use. The key `few` may use 100 tokens a minute. A request
    waits for 1000 s of the loop's clock.
    """
    keys = write(tmp_path / "k.yaml", key("other"), key("few", tokens_per_minute=100))
    world = await world_of(
        Settings(keys_file=keys, max_concurrent_requests=1, queue_timeout_s=1000)
    )
    endless = world.model(endless=True)
    model = FakePoolingModel(tasks=["embed", "generate"], max_model_len=1000)
    world.registry.models["both"] = model
    running = asyncio.ensure_future(ask(world, "/v1/chat/completions", "other", model="fake"))
    await endless.begun.wait()
    yield world
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def ask(world, path, who, model="both"):
    """The status and the error's code."""
    body = {"model": model, **BODIES[path]}
    answer = await world.client.post(path, json=body, headers=bearer(who))
    return answer.status_code, answer.json()["error"]["code"]


@paths
async def test_request_beyond_the_token_limit_is_a_429_at_once(full, path, loop_clock):
    """It does not wait in the queue. Queued requests of the key count against the limit."""
    waiting = asyncio.ensure_future(ask(full, path, "few"))
    refused = asyncio.ensure_future(ask(full, path, "few"))
    done, _ = await asyncio.wait([waiting, refused], return_when=asyncio.FIRST_COMPLETED)

    assert [task.result() for task in done] == [(429, "rate_limit_exceeded")]
    loop_clock.move_on(1001)
    left = waiting if refused in done else refused
    assert await left == (503, "queue_timeout")


@paths
async def test_queue_timeout_returns_the_tokens_to_the_key(full, path, loop_clock):
    """The next request of the key can use them."""
    slots = full.app.state.gateway.limiter.slots(FakePoolingModel().model_name, ConcurrencyLimits())
    answers = []
    for _ in range(2):
        asked = asyncio.ensure_future(ask(full, path, "few"))
        await until(lambda: len(slots.queue) == 1)
        loop_clock.move_on(1001)
        answers.append(await asked)

    assert answers == [(503, "queue_timeout")] * 2
