"""GET /metrics and /version."""

import asyncio
from collections.abc import Callable, Iterable

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.metrics_core import Metric

from openai_frontend import __version__
from openai_frontend.errors import GatewayError
from openai_frontend.metrics import exposition
from openai_frontend.routers.openapi import ERRORS
from openai_frontend.routers.routing import MetricsRoute
from schemas.operations import Version


def metrics_router(own: Callable[[], Iterable[Metric]], core: Callable[[], str]) -> APIRouter:
    """`own` returns the gateway's metric families, `core` Triton's text; both may block."""
    router = APIRouter(tags=["operations"], route_class=MetricsRoute)

    @router.get("/metrics", response_class=PlainTextResponse, responses=ERRORS)
    async def get_metrics(request: Request) -> Response:
        """Metrics, as OpenMetrics if the client accepts it, else as Prometheus text."""
        if "application/openmetrics-text" in request.headers.get("accept", ""):
            write, media_type = exposition.as_openmetrics, exposition.OPENMETRICS
        else:
            write, media_type = exposition.plain, exposition.PLAIN
        text = await asyncio.to_thread(lambda: write(own(), _text(core)))
        return Response(text, headers={"content-type": media_type})

    @router.get("/version", responses={200: {"model": Version}, **ERRORS})
    async def get_version(request: Request) -> Response:
        """The version of this server."""
        version = Version(version=__version__)
        return Response(version.model_dump_json(), media_type="application/json")

    return router


def _text(core: Callable[[], str]) -> str:
    """Triton's metrics; empty while the core starts or stops."""
    try:
        return core()
    except GatewayError:
        return ""
