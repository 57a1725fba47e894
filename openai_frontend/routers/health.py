"""GET /health/live and /health/ready; /health, /healthz and /ping answer as the latter does."""

from collections.abc import Callable, Mapping

from fastapi import APIRouter, Request, Response

from openai_frontend.drain_state import DrainState
from openai_frontend.routers.openapi import ERRORS
from openai_frontend.routers.request import is_anonymous, principal_of
from openai_frontend.routers.routing import HealthRoute
from openai_frontend.serving.admission.authorized_models import allows
from schemas.operations import Health


def health_router(
    drain_state: DrainState,
    is_ready: Callable[[], bool],
    unready_models: Callable[[], Mapping[str, str]],
) -> APIRouter:
    """`unready_models` tells why, for each model that cannot serve."""
    router = APIRouter(tags=["health"], route_class=HealthRoute)
    why_not = "Some model cannot serve, or is still loading; or the server is about to end."
    not_ready = {"model": Health, "description": why_not}

    @router.get("/health/live", responses={200: {"model": Health}, **ERRORS})
    async def live(request: Request) -> Response:
        """200 as long as the process answers at all."""
        return _answer(200, Health(status="live"))

    @router.get(
        "/health/ready", responses={200: {"model": Health}, 503: not_ready, "4XX": ERRORS["4XX"]}
    )
    @router.get("/health", responses={200: {"model": Health}, 503: not_ready, "4XX": ERRORS["4XX"]})
    @router.get("/healthz", include_in_schema=False)
    @router.get("/ping", include_in_schema=False)
    async def ready(request: Request) -> Response:
        """200 while every model can serve; else 503 with the reasons, of the models that the key
        allows: strangers get none. 503 from the moment on that the process is asked to end.
        """
        if not drain_state.ready:
            return _answer(503, Health(status="stopping"))
        if is_ready():
            return _answer(200, Health(status="ready"))
        told = {} if is_anonymous(request) else unready_models()
        principal = principal_of(request)
        models = {name: reason for name, reason in told.items() if allows(principal, name)}
        return _answer(503, Health(status="not ready", models=models))

    return router


def _answer(status: int, health: Health) -> Response:
    return Response(
        health.model_dump_json(exclude_none=True), status, media_type="application/json"
    )
