"""GET /health/live and /health/ready; /health, /healthz and /ping are aliases of the latter."""

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
    """`unready_models` returns the reason for each model that is not ready."""
    router = APIRouter(tags=["health"], route_class=HealthRoute)
    why_not = "A model is not ready or still loading, or the server is shutting down."
    not_ready = {"model": Health, "description": why_not}

    @router.get("/health/live", responses={200: {"model": Health}, **ERRORS})
    async def live(request: Request) -> Response:
        """200 while the process responds."""
        return _answer(200, Health(status="live"))

    @router.get(
        "/health/ready", responses={200: {"model": Health}, 503: not_ready, "4XX": ERRORS["4XX"]}
    )
    @router.get("/health", responses={200: {"model": Health}, 503: not_ready, "4XX": ERRORS["4XX"]})
    @router.get("/healthz", include_in_schema=False)
    @router.get("/ping", include_in_schema=False)
    async def ready(request: Request) -> Response:
        """200 if all models are ready, else 503 with the reasons for models that the key allows.

        Requests without a key get no reasons. 503 from the start of a shutdown.
        """
        if not drain_state.ready:
            return _answer(503, Health(status="stopping"))
        if is_ready():
            return _answer(200, Health(status="ready"))
        reasons = {} if is_anonymous(request) else unready_models()
        principal = principal_of(request)
        models = {name: reason for name, reason in reasons.items() if allows(principal, name)}
        return _answer(503, Health(status="not ready", models=models))

    return router


def _answer(status: int, health: Health) -> Response:
    return Response(
        health.model_dump_json(exclude_none=True), status, media_type="application/json"
    )
