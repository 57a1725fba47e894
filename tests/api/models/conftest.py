"""The whole gateway in the test's own process: the real core, mock models, a real socket."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_frontend.app import create_app
from openai_frontend.cli.serve import triton_options
from openai_frontend.config.settings import Settings
from openai_frontend.engines.engine import ModelFacts, ModelSpec
from openai_frontend.engines.mock import MockEngine
from openai_frontend.lifespan import AppState
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.server.http_protocol import limited_protocol
from openai_frontend.server.limits import ProtocolLimits
from openai_frontend.triton import Server
from tests.uvicorn_server import serving


@dataclass
class LiveGateway:
    """A gateway whose insides a test may look at."""

    server: Server
    registry: ModelRegistry
    client: httpx.AsyncClient
    state: AppState

    async def chat(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, model: str, **fields: Any) -> httpx.Response:
        return await self.client.post(
            "/v1/completions", json={"model": model, "prompt": "hi", **fields}
        )

    async def change(self, model: str, what: str, **fields: Any) -> httpx.Response:
        return await self.client.post(f"/v1/models/{model}/{what}", **fields)

    async def listed(self) -> list[str]:
        models = (await self.client.get("/v1/models")).json()["data"]
        return [model["id"] for model in models]


Live = Callable[..., AbstractAsyncContextManager[LiveGateway]]

EXPLICIT: dict[str, Any] = {"model_control_mode": "explicit", "enable_model_management": True}


@contextlib.asynccontextmanager
async def live(repository: Path, **settings: Any) -> AsyncIterator[LiveGateway]:
    """A gateway in explicit mode that serves the models of `repository`, until the test leaves."""
    defaults = {"exit_timeout_s": 20, "model_control_mode": "explicit"}
    chosen = Settings(model_repository=[repository], **{**defaults, **settings})
    server = Server(triton_options(chosen))
    app = create_app(chosen, server)
    registry: ModelRegistry = app.state.registry
    http = limited_protocol(ProtocolLimits(request_timeout_s=chosen.request_timeout_s))
    options: dict[str, Any] = {"lifespan": "on", "timeout_graceful_shutdown": 2, "http": http}
    async with serving(app, **options) as (_, (host, port)):
        while not registry.has_loaded():
            assert app.state.startup.failure is None
            await asyncio.sleep(0.01)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=f"http://{host}:{port}", timeout=120, limits=limits
        ) as client:
            yield LiveGateway(server, registry, client, app.state.gateway)


HELD = "waiting for a test"  # the phase of a held load


class HeldLoads:
    """Mock engines load once the test allows it."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()


@pytest.fixture
def held_loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldLoads]:
    """Loads that begin from now on last until the test sets `may_end`."""
    held, load = HeldLoads(), MockEngine.load

    def loads_when_told(engine: MockEngine, model: ModelSpec) -> ModelFacts:
        held.begun.set()
        model.report_phase(HELD)
        assert held.may_end.wait(120)
        return load(engine, model)

    monkeypatch.setattr(MockEngine, "load", loads_when_told)
    yield held
    held.may_end.set()


@pytest.fixture
def live_gateway(repository: Path, nothing_left: None) -> Live:
    """Starts a gateway on `repository`; when the test is over, nothing of it is left."""

    def start(**settings: Any) -> AbstractAsyncContextManager[LiveGateway]:
        return live(repository, **settings)

    return start
