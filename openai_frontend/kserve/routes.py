"""All routes of KServe's protocol. /v2/rerank is not one of them: it is Cohere's."""

from collections.abc import Callable
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend.errors import InvalidRequest, NotSupported
from openai_frontend.kserve.generate import GenerateService
from openai_frontend.kserve.infer import InferService
from openai_frontend.kserve.inference_routes import (
    ERRORS,
    MODEL,
    VERSION,
    inference_router,
    visible_model,
)
from openai_frontend.kserve.models import (
    Core,
    describe_server,
    visible_entries,
    visible_statistics,
)
from openai_frontend.kserve.repository import Repository
from openai_frontend.kserve.services import KServeServices
from openai_frontend.kserve.settings_routes import settings_router
from openai_frontend.kserve.shared_memory import NO_CUDA
from openai_frontend.kserve.shared_memory_routes import shared_memory_router
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.openapi import request_body
from openai_frontend.routers.request import read_body
from openai_frontend.routers.routing import AdminRoute, HealthRoute, MetricsRoute, ModelsRoute
from openai_frontend.routers.streaming import StreamLimits
from schemas.kserve import (
    IndexEntry,
    IndexRequest,
    LoadRequest,
    ModelMetadata,
    ServerMetadata,
    UnloadRequest,
)


def kserve_router(services: KServeServices, streams: StreamLimits) -> APIRouter:
    core, repository = services.core, services.repository
    infer = InferService(services.inference, services.policy)
    generate = GenerateService(services.inference)
    router = APIRouter()
    for part in (
        health_router(core, services.is_ready),
        server_router(services),
        statistics_router(core),  # before models_router, or /v2/models/stats would be a model
        models_router(core),
        readiness_router(core),
        inference_router(services, infer, generate, streams),
        index_router(repository),
        control_router(repository),
        settings_router(core, services.log_settings, services.trace_settings),
        shared_memory_router(services.shared_memory),
        unsupported_router(),
    ):
        router.routes.extend(part.routes)  # `include_router` builds each route a second time
    return router


def health_router(core: Core, is_ready: Callable[[], bool]) -> APIRouter:
    """The statuses are Triton's; the bodies, which it does not send, are those of the protocol."""
    router = APIRouter(tags=["KServe"], route_class=HealthRoute)

    responses: dict[int | str, dict[str, Any]] = {200: {"model": dict[str, bool]}, **ERRORS}

    def answer(name: str, state: bool) -> Response:
        return json({name: state}, status=200 if state else 400)

    @router.get("/v2/health/live", responses=responses)
    async def live(request: Request) -> Response:
        """200 while the core runs."""
        return answer("live", core.is_live())

    @router.get("/v2/health/ready", responses=responses)
    async def ready(request: Request) -> Response:
        """200 once every model is ready."""
        return answer("ready", is_ready())

    return router


def server_router(services: KServeServices) -> APIRouter:
    router = APIRouter(tags=["KServe"], route_class=ModelsRoute)

    @router.get("/v2", responses={200: {"model": ServerMetadata}, **ERRORS})
    async def server_metadata(request: Request) -> Response:
        """The core's name and version, and the supported protocol extensions."""
        return json(describe_server(services.core, *services.extensions, "generate"))

    return router


def json(document: object, *, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


_JSON: dict[int | str, dict[str, Any]] = {200: {"model": dict[str, Any]}, **ERRORS}


def models_router(core: Core) -> APIRouter:
    """Returns the core's own documents."""
    router = APIRouter(tags=["KServe"], route_class=ModelsRoute)

    @router.get(MODEL, responses={200: {"model": ModelMetadata}, **ERRORS})
    @router.get(VERSION, include_in_schema=False)
    async def model_metadata(request: Request) -> Response:
        """A model's versions, inputs and outputs."""
        model = visible_model(request)
        return json(core.model_metadata(model.name, model.version))

    @router.get(MODEL + "/config", responses=_JSON)
    @router.get(VERSION + "/config", include_in_schema=False)
    async def model_config(request: Request) -> Response:
        """A model's config, completed by its backend."""
        model = visible_model(request)
        return json(core.model_config(model.name, model.version))

    return router


def readiness_router(core: Core) -> APIRouter:
    """The statuses are Triton's; the bodies, which it does not send, are those of the protocol."""
    router = APIRouter(tags=["KServe"], route_class=ModelsRoute)  # reveals which models exist

    @router.get(MODEL + "/ready", response_class=Response, responses=ERRORS)
    @router.get(VERSION + "/ready", include_in_schema=False)
    async def model_ready(request: Request) -> Response:
        """200 if the model is ready, else 400."""
        model = visible_model(request)
        if not core.model_is_ready(model.name, model.version):
            raise InvalidRequest("Model version not ready", param="model")
        return Response()

    return router


def statistics_router(core: Core) -> APIRouter:
    router = APIRouter(tags=["KServe"], route_class=MetricsRoute)

    @router.get("/v2/models/stats", responses=_JSON)
    async def all_statistics(request: Request) -> Response:
        """Request counts and durations of all models."""
        return json(visible_statistics(current_request().principal, core))

    @router.get(MODEL + "/stats", responses=_JSON)
    @router.get(VERSION + "/stats", include_in_schema=False)
    async def model_statistics(request: Request) -> Response:
        """Request counts and durations of one model."""
        model = visible_model(request)
        return json(core.model_statistics(model.name, model.version))

    return router


_REPOSITORY_MODEL = "/v2/repository/models/{model}"
_INDEX: dict[int | str, dict[str, Any]] = {200: {"model": list[IndexEntry]}, **ERRORS}


def index_router(repository: Repository) -> APIRouter:
    router = APIRouter(tags=["KServe"], route_class=ModelsRoute)

    # Triton ignores the name
    @router.post("/v2/repository/{repository}/index", include_in_schema=False)
    @router.post("/v2/repository/index", openapi_extra=request_body(IndexRequest), responses=_INDEX)
    async def repository_index(request: Request) -> Response:
        """Lists every version of every model, with the reason if it is not ready."""
        index = await repository.read_index(await read_body(request.receive))
        return json(visible_entries(current_request().principal, index))

    return router


def control_router(repository: Repository) -> APIRouter:
    """Answers without a body once the change is done."""
    router = APIRouter(tags=["KServe"], route_class=AdminRoute)

    @router.post(
        _REPOSITORY_MODEL + "/load",
        openapi_extra=request_body(LoadRequest),
        response_class=Response,
        responses=ERRORS,
    )
    async def load_model(request: Request) -> Response:
        """Loads or reloads a model."""
        await repository.read_load(visible_model(request), await read_body(request.receive))
        return Response()

    @router.post(
        _REPOSITORY_MODEL + "/unload",
        openapi_extra=request_body(UnloadRequest),
        response_class=Response,
        responses=ERRORS,
    )
    async def unload_model(request: Request) -> Response:
        """Unloads a model and waits until it is gone."""
        await repository.read_unload(visible_model(request), await read_body(request.receive))
        return Response()

    return router


_REPOSITORY = "'repository_name' specification is not supported"  # Triton's words

_UNSUPPORTED = {
    "/v2/cudasharedmemory/{rest:path}": NO_CUDA,
    "/v2/repository/{repository}/models/{model}/{action}": _REPOSITORY,
}


def unsupported_router() -> APIRouter:
    """Triton's endpoints that this server lacks. The OpenAPI document omits them."""
    router = APIRouter(route_class=AdminRoute, include_in_schema=False)
    for path, message in _UNSUPPORTED.items():
        router.add_api_route(path, _refusing(message), methods=["GET", "POST"])
    return router


def _refusing(message: str) -> Callable[[Request], Any]:
    async def refuse(request: Request) -> Response:
        raise NotSupported(message)

    return refuse
