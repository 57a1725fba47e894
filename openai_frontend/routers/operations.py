"""GET /health/live, /health/ready, /metrics and /version.

/health, /healthz and /ping are aliases of /health/ready.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.metrics_core import Metric

from openai_frontend import __version__
from openai_frontend.errors import GatewayError
from openai_frontend.metrics import exposition
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.openapi import ERRORS
from openai_frontend.routers.routing import HealthRoute, MetricsRoute
from openai_frontend.serving.admission.authorized_models import allows
from schemas.operations import Health, Version


def health_router(
    in_rotation: Callable[[], bool],
    is_ready: Callable[[], bool],
    unready_models: Callable[[], Mapping[str, str]],
) -> APIRouter:
    """`in_rotation` is false from the start of a shutdown. `unready_models` returns the reason for
    each model that is not ready.
    """
    router = APIRouter(tags=["Health"], route_class=HealthRoute)
    why_not = "A model is not ready or still loading, or the server is shutting down."
    readiness: dict[int | str, dict[str, Any]] = {
        200: {"model": Health},
        503: {"model": Health, "description": why_not},
        "4XX": ERRORS["4XX"],
    }

    @router.get("/health/live", responses={200: {"model": Health}, **ERRORS})
    async def live(request: Request) -> Response:
        """200 while the process responds."""
        return _answer(200, Health(status="live"))

    @router.get("/health/ready", responses=readiness)
    @router.get("/health", responses=readiness)
    @router.get("/healthz", responses=readiness)
    @router.get("/ping", responses=readiness)
    async def ready(request: Request) -> Response:
        """200 if all models are ready, else 503 with the reasons for models that the key allows.

        Requests without a key get no reasons. 503 from the start of a shutdown.
        """
        if not in_rotation():
            return _answer(503, Health(status="stopping"))
        if is_ready():
            return _answer(200, Health(status="ready"))
        reasons = {} if current_request().is_anonymous else unready_models()
        principal = current_request().principal
        models = {name: reason for name, reason in reasons.items() if allows(principal, name)}
        return _answer(503, Health(status="not ready", models=models))

    return router


def _answer(status: int, health: Health) -> Response:
    return Response(
        health.model_dump_json(exclude_none=True), status, media_type="application/json"
    )


def metrics_router(own: Callable[[], Iterable[Metric]], core: Callable[[], str]) -> APIRouter:
    """`own` returns the gateway's metric families, `core` Triton's text; both may block."""
    router = APIRouter(tags=["Operations"], route_class=MetricsRoute)

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
