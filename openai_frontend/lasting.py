"""What lives as long as the process, while the settings around it may change. Knows no HTTP."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from openai_frontend.auth.authenticator import Authenticator
from openai_frontend.errors import GatewayError
from openai_frontend.keep_up import keep_up
from openai_frontend.life import Life
from openai_frontend.metrics import loop_lag
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.middleware.body_limit import BodyMemoryBudget
from openai_frontend.models.on_demand import OnDemandLoader
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.supervisor import EngineSupervisor
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.tracing.tracing import Tracing
from openai_frontend.triton import Server

logger = logging.getLogger(__name__)


class Startup:
    """Starts the core and reads its models while the port already listens.

    A failure is kept in `failure`; then `on_failure` is called, by which the process ends itself.
    """

    def __init__(
        self,
        server: Server,
        registry: ModelRegistry,
        *,
        adapters_s: float,
        follow_s: float | None = None,
        first: Sequence[str] = (),
    ) -> None:
        """Seconds between two looks: `adapters_s` at the folders of adapters, `follow_s` at a
        repository that the core polls. `first` are the models to bring where all are loaded on
        demand.
        """
        self._first = first
        self._adapters_s = adapters_s
        self._follow_s = follow_s
        self._server = server
        self._registry = registry
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.on_core: Callable[[], None] = lambda: None  # engines are made, no request is taken

    async def run(self) -> None:
        """Returns where the start has failed; else it goes on to look at what may change."""
        try:
            await self._server.start()
            self.on_core()
            await self._registry.refresh()
            await self._bring_first()
            async with asyncio.TaskGroup() as following:
                look = partial(self._registry.watch_adapters, self._adapters_s)
                following.create_task(keep_up("the look at adapters", look))
                if self._follow_s is not None:
                    look = partial(self._registry.watch, self._follow_s)
                    following.create_task(keep_up("the look at the repository", look))
        except Exception as error:  # noqa: BLE001  the process edge of the start
            self.failure = error
            logger.error("the server did not start: %s", error)
            self.on_failure()

    async def _bring_first(self) -> None:
        """One that does not load is like any other that does not: a request tries again."""
        for name in self._first:
            try:
                await self._registry.ensure_loaded(name)
            except GatewayError as error:
                logger.error("model %s could not be loaded: %s", name, error.message)


@dataclass(frozen=True, kw_only=True)
class Lasting:
    """What holds counts, tasks and models. Made once; owned by the application's lifespan."""

    server: Server
    registry: ModelRegistry
    startup: Startup
    metrics: GatewayMetrics
    keys: Authenticator | None  # None: everybody may come in
    demand: OnDemandLoader | None  # None: models are not loaded on demand
    life: Life
    limiter: ConcurrencyLimiter
    bodies: BodyMemoryBudget
    tracing: Tracing | None  # None: requests are not traced
    engines: EngineSupervisor

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncGenerator[None, None]:
        """Starts all of it, and ends all of it."""
        works = [
            self.startup.run(),
            loop_lag.watch(self.metrics.lagged),
            keep_up("the watch over engines", self.engines.watch),
            *(
                keep_up("the look at keys", each.follow)
                for each in (self.keys.followed if self.keys is not None else ())
            ),
        ]
        running = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            if self.demand is not None:
                await self.demand.close()
            self.registry.close()
            await self.server.stop()
            if self.tracing is not None:
                await asyncio.to_thread(self.tracing.close)
