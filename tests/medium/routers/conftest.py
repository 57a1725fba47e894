"""The whole application over a fake Triton server and fake models, with an HTTP client."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from openai_frontend import app as app_module
from openai_frontend import lifespan
from openai_frontend.admission.queue import NO_LIMITS, ConcurrencyLimits
from openai_frontend.config.settings import Settings
from openai_frontend.errors import ModelNotFound, ModelUnavailable
from openai_frontend.metrics.vllm import VLLMModel
from openai_frontend.model_facts import ModelFacts
from openai_frontend.models.model_card import ModelCard
from openai_frontend.models.model_use import ModelUses
from openai_frontend.prefix_cache.salts import CacheSalts
from openai_frontend.routers.routing import all_routes
from openai_frontend.runtime.heartbeat import Heartbeat
from openai_frontend.server.internal_server import QuietServer
from openai_frontend.triton.responses import UnreleasedRequests
from openai_frontend.triton.stub_processes import StubProcesses
from tests.fast.serving.fake_model import FakeModel
from tests.uvicorn_server import serving


@dataclass
class FakeServer:
    """A Triton server that starts once `may_start` is set."""

    may_start: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None
    live: bool = False
    stopped: bool = False
    unreleased: UnreleasedRequests = field(default_factory=UnreleasedRequests)
    stubs: StubProcesses = field(default_factory=StubProcesses)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)

    async def start(self) -> None:
        await self.may_start.wait()
        if self.failure is not None:
            raise self.failure
        self.live = True

    async def stop(self) -> None:
        self.stopped = True

    def is_live(self) -> bool:
        return self.live

    def metrics(self) -> str:
        return "# HELP nv_x y\n"


FACTS = ModelFacts(max_model_len=64, owned_by="tests")


@dataclass
class FakeRegistry:
    """The models by name. It knows them after `refresh`."""

    models: dict[str, FakeModel] = field(default_factory=dict)
    known: asyncio.Event = field(default_factory=asyncio.Event)
    failures: dict[str, str] = field(default_factory=dict)
    uses: ModelUses = field(default_factory=ModelUses)
    loading_at_start: set[str] = field(default_factory=set)
    cache_salts: CacheSalts = field(default_factory=CacheSalts)
    on_refresh: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    async def refresh(self) -> None:
        self.known.set()

    def use(self, name: str) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    def concurrency_limits(self, name: str) -> ConcurrencyLimits:
        return NO_LIMITS

    async def ensure_loaded(self, name: str, queue_key: object = None) -> None:
        pass

    def unloaded_capabilities(self, name: str) -> None:
        """None is unloaded."""

    async def watch_adapters(self, every_s: float) -> None:
        """There are none."""

    def snapshot_id(self) -> None:
        """There is no snapshot."""

    def get(self, name: str) -> FakeModel:
        if not self.known.is_set():
            raise ModelUnavailable("The models are still loading.")
        if name not in self.models:
            raise ModelNotFound(f"The model '{name}' does not exist.", param="model")
        return self.models[name]

    def card(self, name: str) -> ModelCard:
        self.get(name)
        return ModelCard(name=name, created=1, ready=True, facts=FACTS)

    def cards(self) -> list[ModelCard]:
        return [self.card(name) for name in self.models]

    def is_ready(self) -> bool:
        return self.known.is_set() and not self.failures

    def vllm_models(self) -> list[VLLMModel]:
        return []

    def engine_gauges(self) -> list[dict[str, float]]:
        return [{"running": 1, "waiting": 2, "vllm:kv_cache_usage_perc": 0.25}]

    def unready(self) -> dict[str, str]:
        return self.failures

    def close(self) -> None:
        self.known.clear()


@dataclass
class World:
    """An application with everything that a test may change."""

    app: FastAPI
    server: FakeServer
    registry: FakeRegistry
    client: httpx.AsyncClient

    def model(self, *args: Any, name: str = "fake", **options: Any) -> FakeModel:
        model = self.registry.models[name] = FakeModel(*args, **options)
        return model

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)


@pytest.fixture
def settings() -> Settings:
    return Settings(max_body_bytes=10_000)


@contextlib.asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> AsyncGenerator[World, None]:
    """The application while its models are still loading. No repository is read."""
    settings = settings.model_copy(update={"model_repository": ()})
    server, registry = FakeServer(), FakeRegistry()
    monkeypatch.setattr(lifespan, "ModelRegistry", lambda *_, **__: registry)
    app = app_module.create_app(settings, server)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield World(app, server, registry, client)


@pytest.fixture
async def starting(monkeypatch, settings) -> AsyncGenerator[World, None]:
    async with running(monkeypatch, settings) as world:
        yield world


@pytest.fixture
async def world(starting: World) -> World:
    """The application after startup, without models."""
    return await started(starting)


@pytest.fixture
def routes(world: World) -> list[Any]:
    """The application's routes; each has a scope."""
    return list(all_routes(world.app))


@pytest.fixture
async def world_of(monkeypatch) -> AsyncGenerator[Callable[[Settings], Awaitable[World]], None]:
    """Makes applications with other settings, after startup."""
    async with contextlib.AsyncExitStack() as worlds:

        async def make(settings: Settings) -> World:
            return await started(await worlds.enter_async_context(running(monkeypatch, settings)))

        yield make


async def started(world: World) -> World:
    world.server.may_start.set()
    await world.registry.known.wait()
    return world


@contextlib.asynccontextmanager
async def served(world: World) -> AsyncGenerator[tuple[QuietServer, str], None]:
    """The application behind a real socket: uvicorn's server and the base URL."""
    async with serving(world.app, timeout_graceful_shutdown=1) as (server, (host, port)):
        yield server, f"http://{host}:{port}"
