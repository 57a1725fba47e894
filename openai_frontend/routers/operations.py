"""GET /metrics and /version: what operators ask for."""

import asyncio
from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from openai_frontend import __version__
from openai_frontend.routers.direct_route import MetricsRoute
from openai_frontend.routers.openapi import ERRORS
from schemas.operations import Version

_PROMETHEUS = "text/plain; version=0.0.4"


def operations_router(metrics: Callable[[], str]) -> APIRouter:
    """`metrics` gives Prometheus text; it may block."""
    router = APIRouter(tags=["operations"], route_class=MetricsRoute)

    @router.get("/metrics", response_class=PlainTextResponse, responses=ERRORS)
    async def get_metrics(request: Request) -> Response:
        """Counters in Prometheus' text format."""
        return Response(await asyncio.to_thread(metrics), media_type=_PROMETHEUS)

    @router.get("/version", responses={200: {"model": Version}, **ERRORS})
    async def get_version(request: Request) -> Response:
        """The version of this server."""
        version = Version(version=__version__)
        return Response(version.model_dump_json(), media_type="application/json")

    return router
