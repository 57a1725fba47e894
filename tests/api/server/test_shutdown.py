"""Shutdown of the process with a core that stops slowly."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import uvicorn
from starlette.types import Receive, Scope, Send

from openai_frontend.cli import banner
from openai_frontend.lifespan import Startup
from openai_frontend.middleware.drain import DrainState
from openai_frontend.runtime.heartbeat import Heartbeat
from openai_frontend.server.process import GatewayProcess, Resources, ShutdownTimeouts


class SlowCore:
    """Its requests end as soon as `stop` is called; it stops a while later."""

    def __init__(self) -> None:
        self.stops = asyncio.Event()
        self.heartbeat = Heartbeat()
        self.has_stopped = False

    async def stop(self) -> None:
        if self.stops.is_set():  # a second call does nothing
            return
        self.stops.set()
        await asyncio.sleep(0.3)
        self.has_stopped = True


class Loaded:
    """A registry that has loaded."""

    def has_loaded(self) -> bool:
        return True

    def is_starting(self) -> bool:
        return False

    def cards(self) -> list[Any]:
        return []

    def unready(self) -> dict[str, str]:
        return {}


async def test_shutdown_waits_for_the_core_to_stop():
    """Even if its requests have ended: stopping the core frees the devices and decides whether the
    process must exit in another way.
    """
    core, begun = SlowCore(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await core.stop()
            await send({"type": "lifespan.shutdown.complete"})
            return
        begun.set()
        await core.stops.wait()
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    process = process_of(app, core)
    async with served(process) as url, httpx.AsyncClient() as client:
        request = asyncio.create_task(client.get(url))
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        answer = await request

    assert answer.status_code == 503
    assert core.has_stopped


def process_of(app: Any, core: SlowCore) -> GatewayProcess:
    models: Any = Loaded()
    server: Any = core
    startup = Startup(server, models, lora_poll_interval_s=60)
    config = uvicorn.Config(app, port=0, log_config=None, ws="none")
    return GatewayProcess(
        config,
        Resources(server, models, startup, DrainState()),
        shutdown_timeouts=ShutdownTimeouts(delay_s=0, grace_s=0.2),
        reporter=banner.StartupBanner(
            banner.LoadProgress(sys.stderr, []), banner.ListenAddress("http://localhost/v1")
        ),
    )


@contextlib.asynccontextmanager
async def served(process: GatewayProcess) -> AsyncGenerator[str, None]:
    """Serves until the process ends by itself."""
    serving = asyncio.create_task(process.serve())
    while not process.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.005)
    port = process.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        async with asyncio.timeout(30):
            await serving
