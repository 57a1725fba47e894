"""Engines that die and come back, in the test's own process."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openai_frontend import errors
from openai_frontend.generation import GenerationRequest, SamplingParams
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.model_options import EngineLimits
from openai_frontend.models import restarts
from openai_frontend.models.engine_life import EngineLife
from openai_frontend.models.registry import ModelRegistry
from tests import mock_models
from tests.triton.waiting import until

ONE = EngineLimits(restarts=1)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No back-off: the policy has tests of its own."""
    monkeypatch.setattr(restarts, "FIRST_DELAY_S", 0.0)


class World:
    def __init__(self, registry: ModelRegistry, limits: EngineLimits) -> None:
        self.registry = registry
        self.server = registry._server
        self.life = EngineLife(self.server, registry, GatewayMetrics(), limits)

    async def settle(self) -> None:
        """Look, until there is nothing more to mend."""
        self.life.look(time.monotonic())
        await until(lambda: not self.life._mending)

    async def ask(self) -> str:
        request = GenerationRequest(
            request_id="r", prompt="hi", sampling_params=SamplingParams(max_tokens=8), stream=True
        )
        text = ""
        async for deltas in self.registry.get("mock").generate(request):
            text += "".join(delta.text for delta in deltas)
        return text

    async def die(self) -> None:
        with pytest.raises(errors.ModelUnavailable, match="died"):
            await self.ask()


@asynccontextmanager
async def world(repository: Path, limits: EngineLimits, **options: Any) -> AsyncIterator[World]:
    async with mock_models.serving(repository, **options) as registry:
        yield World(registry, limits)


@pytest.mark.parametrize("mode", ["none", "explicit", "poll"])
async def test_an_engine_is_made_again(repository, nothing_left, mode):
    """In every model control mode a dead engine is replaced, and its model serves."""
    mock_models.write(repository, "mock", die_after_tokens=2)
    options = {"startup_models": ["*"]} if mode == "explicit" else {}
    async with world(repository, ONE, model_control_mode=mode, **options) as here:
        await here.die()
        mock_models.write(repository, "mock")  # what it is made of is read again
        await here.settle()

        assert await here.ask() == " token" * 8


async def test_requests_meanwhile(repository, nothing_left):
    """While an engine starts, requests are told when to come again."""
    mock_models.write(repository, "mock", die_after_tokens=2)
    async with world(repository, ONE) as here:
        await here.die()
        mock_models.write(repository, "mock", load_s=0.3)
        here.life.look(time.monotonic())
        await until(lambda: here.server.conditions.reason("mock") is not None)

        with pytest.raises(errors.EngineRestarting, match="being started again") as refused:
            await here.ask()
        assert refused.value.retry_after_s
        assert not here.server.model_is_ready("mock")
        await here.settle()
        assert here.server.model_is_ready("mock")


async def test_a_start_that_fails(repository, nothing_left):
    """Its reason is told, and once all starts are used up the model stays down."""
    mock_models.write(repository, "mock", die_after_tokens=2)
    async with world(repository, EngineLimits(restarts=2)) as here:
        await here.die()
        mock_models.write(repository, "mock", fail_at_load="no weights")
        await here.settle()

        with pytest.raises(errors.ModelFailed, match="no weights; after 2 starts"):
            await here.ask()
        await here.settle()
        assert "no weights" in here.registry.unready()["mock"]


async def test_a_load_mends_what_was_left(repository, nothing_left):
    """A model that stays down serves again once somebody loads it."""
    mock_models.write(repository, "mock", die_after_tokens=2)
    options = {"model_control_mode": "explicit", "startup_models": ["*"]}
    async with world(repository, EngineLimits(restarts=0), **options) as here:
        await here.die()
        await here.settle()
        assert "died" in here.registry.unready()["mock"]

        mock_models.write(repository, "mock")
        await here.registry.load("mock")
        await here.settle()
        assert await here.ask() == " token" * 8


async def test_the_models_own_limit(repository, nothing_left):
    """A model's `engine_restarts` goes before the setting."""
    mock_models.write(repository, "mock", die_after_tokens=2)
    (repository / "mock" / "openai_frontend.yaml").write_text(json.dumps({"engine_restarts": 0}))
    async with world(repository, ONE) as here:
        await here.die()
        mock_models.write(repository, "mock")
        await here.settle()

        with pytest.raises(errors.ModelFailed, match="died"):
            await here.ask()
