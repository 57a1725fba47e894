"""POST /v2/repository/index, and load and unload of a model."""

from typing import Any

from fastapi import APIRouter, Request, Response

from openai_frontend.routers.caller import caller_of
from openai_frontend.routers.direct_route import AdminRoute, ModelsRoute
from openai_frontend.routers.kserve.address import known_model
from openai_frontend.routers.kserve.errors import ERRORS
from openai_frontend.routers.kserve.server import json
from openai_frontend.routers.openapi import request_body
from openai_frontend.serving.admission.authorized_models import allows
from openai_frontend.serving.kserve.repository import Repository
from schemas.kserve import IndexEntry, IndexRequest, LoadRequest, UnloadRequest

_MODEL = "/v2/repository/models/{model}"
_INDEX: dict[int | str, dict[str, Any]] = {200: {"model": list[IndexEntry]}, **ERRORS}


def index_router(repository: Repository) -> APIRouter:
    """What the repositories have."""
    router = APIRouter(tags=["kserve"], route_class=ModelsRoute)

    @router.post("/v2/repository/index", openapi_extra=request_body(IndexRequest), responses=_INDEX)
    async def repository_index(request: Request) -> Response:
        """Every version of every model, and why it is not ready."""
        caller, index = caller_of(request), repository.index(await request.body())
        return json([entry for entry in index if allows(caller, entry["name"])])

    return router


def control_router(repository: Repository) -> APIRouter:
    """An answer without a body, once it is done."""
    router = APIRouter(tags=["kserve"], route_class=AdminRoute)

    @router.post(
        _MODEL + "/load",
        openapi_extra=request_body(LoadRequest),
        response_class=Response,
        responses=ERRORS,
    )
    async def load_model(request: Request) -> Response:
        """Loads or reloads a model."""
        await repository.load(known_model(request), await request.body())
        return Response()

    @router.post(
        _MODEL + "/unload",
        openapi_extra=request_body(UnloadRequest),
        response_class=Response,
        responses=ERRORS,
    )
    async def unload_model(request: Request) -> Response:
        """Unloads a model, and waits until it is gone."""
        await repository.unload(known_model(request), await request.body())
        return Response()

    return router
