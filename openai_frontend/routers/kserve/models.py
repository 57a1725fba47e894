"""GET /v2/models/...: what a model is, whether it is ready, and what it has done."""

from typing import Any

from fastapi import APIRouter, Request, Response

from openai_frontend.errors import InvalidRequest
from openai_frontend.routers.caller import caller_of
from openai_frontend.routers.direct_route import MetricsRoute, ModelsRoute
from openai_frontend.routers.kserve.address import MODEL, VERSION, known_model
from openai_frontend.routers.kserve.errors import ERRORS
from openai_frontend.routers.kserve.server import json
from openai_frontend.serving.admission.authorized_models import allows
from openai_frontend.serving.kserve.core import Core
from schemas.kserve import ModelMetadata

_JSON: dict[int | str, dict[str, Any]] = {200: {"model": dict[str, Any]}, **ERRORS}


def models_router(core: Core) -> APIRouter:
    """Documents as the core writes them."""
    router = APIRouter(tags=["kserve"], route_class=ModelsRoute)

    @router.get(MODEL, responses={200: {"model": ModelMetadata}, **ERRORS})
    @router.get(VERSION, include_in_schema=False)
    async def model_metadata(request: Request) -> Response:
        """A model's versions, inputs and outputs."""
        model = known_model(request)
        return json(core.model_metadata(model.name, model.version))

    @router.get(MODEL + "/config", responses=_JSON)
    @router.get(VERSION + "/config", include_in_schema=False)
    async def model_config(request: Request) -> Response:
        """A model's config, completed by its backend."""
        model = known_model(request)
        return json(core.model_config(model.name, model.version))

    return router


def readiness_router(core: Core) -> APIRouter:
    """Without a body: 200 for yes."""
    router = APIRouter(tags=["kserve"], route_class=ModelsRoute)  # it tells which models there are

    @router.get(MODEL + "/ready", response_class=Response, responses=ERRORS)
    @router.get(VERSION + "/ready", include_in_schema=False)
    async def model_ready(request: Request) -> Response:
        """200 where the model can serve, 400 where it cannot."""
        model = known_model(request)
        if not core.model_is_ready(model.name, model.version):
            raise InvalidRequest("Model version not ready", param="model")
        return Response()

    return router


def statistics_router(core: Core) -> APIRouter:
    """Counts and times of requests."""
    router = APIRouter(tags=["kserve"], route_class=MetricsRoute)

    @router.get("/v2/models/stats", responses=_JSON)
    async def all_statistics(request: Request) -> Response:
        """Of all models."""
        caller, statistics = caller_of(request), core.model_statistics()
        told = [each for each in statistics["model_stats"] if allows(caller, each["name"])]
        return json({**statistics, "model_stats": told})

    @router.get(MODEL + "/stats", responses=_JSON)
    @router.get(VERSION + "/stats", include_in_schema=False)
    async def model_statistics(request: Request) -> Response:
        """Of one model."""
        model = known_model(request)
        return json(core.model_statistics(model.name, model.version))

    return router
