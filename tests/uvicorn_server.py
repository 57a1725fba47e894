"""Serves an ASGI application on a free port, in the event loop of the test."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from openai_frontend.runtime.heartbeat import Heartbeat
from openai_frontend.server.http_protocol import limited_protocol
from openai_frontend.server.internal_server import QuietServer
from openai_frontend.server.limits import ProtocolLimits


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp, **options: Any
) -> AsyncGenerator[tuple[QuietServer, tuple[str, int]], None]:
    """The server and its address, once it listens; `options` of uvicorn's configuration."""
    defaults = {"lifespan": "off", "ws": "none", "log_config": None, "port": 0}
    if "http" not in options:
        options["http"] = limited_protocol(ProtocolLimits())
    config = uvicorn.Config(app, **{**defaults, **options})
    server = QuietServer(config, getattr(options["http"], "heartbeat", None) or Heartbeat())
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.005)
    try:
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield server, (host, port)
    finally:
        server.exit()
        await task
