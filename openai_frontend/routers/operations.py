"""GET /metrics and /version: what operators ask for."""

import asyncio
from collections.abc import Callable

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend import __version__
from openai_frontend.routers.direct_route import DirectRoute

_PROMETHEUS = "text/plain; version=0.0.4"


def operations_router(metrics: Callable[[], str]) -> APIRouter:
    """`metrics` gives Prometheus text; it may block."""
    router = APIRouter(tags=["operations"], route_class=DirectRoute)

    @router.get("/metrics")
    async def get_metrics(request: Request) -> Response:
        """Counters in Prometheus' text format."""
        return Response(await asyncio.to_thread(metrics), media_type=_PROMETHEUS)

    @router.get("/version")
    async def get_version(request: Request) -> Response:
        """The version of this server."""
        return Response(orjson.dumps({"version": __version__}), media_type="application/json")

    return router
