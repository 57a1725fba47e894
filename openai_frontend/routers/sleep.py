"""POST /v1/models/{id}/sleep and /wake, and vLLM's /sleep, /wake_up and /is_sleeping."""

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response

from openai_frontend.errors import InvalidRequest
from openai_frontend.models.management import ModelManagement
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.described_model import MediaLimits
from openai_frontend.routers.models import answer_change
from openai_frontend.routers.openapi import ERRORS, optional_body
from openai_frontend.routers.request import read_body
from openai_frontend.routers.routing import AdminRoute
from openai_frontend.serving.admission.authorized_models import check_allowed
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.request_body import BodyReader
from schemas.models import (
    Model,
    ModelChangeRequest,
    ModelProgress,
    ModelSleepRequest,
    SleepState,
)


def sleep_router(
    registry: ModelRegistry,
    management: ModelManagement,
    policy: FieldPolicy,
    limits: MediaLimits,
) -> APIRouter:
    """Models that give memory back while they are not used."""
    router = APIRouter(tags=["Models"], route_class=AdminRoute)
    sleeps, wakes = BodyReader(ModelSleepRequest), BodyReader(ModelChangeRequest)

    @router.post(
        "/v1/models/{id:path}/sleep",
        openapi_extra=optional_body(ModelSleepRequest, ModelProgress),
        responses={200: {"model": Model}, **ERRORS},
    )
    async def sleep_model(request: Request) -> Response:
        """Puts a model to sleep that no request uses. A request wakes it."""
        _check_query(request.query_params)
        body = await read_body(request.receive)
        sleep_request = await sleeps.read(body) if body else ModelSleepRequest()
        policy.check_extra(sleep_request, {})
        change = await management.sleep(_allowed(request.path_params["id"]), sleep_request.level)
        return await answer_change(request, change, sleep_request, registry, limits)

    @router.post(
        "/v1/models/{id:path}/wake",
        openapi_extra=optional_body(ModelChangeRequest, ModelProgress),
        responses={200: {"model": Model}, **ERRORS},
    )
    async def wake_model(request: Request) -> Response:
        """Wakes a sleeping model."""
        _check_query(request.query_params)
        body = await read_body(request.receive)
        wake_request = await wakes.read(body) if body else ModelChangeRequest()
        policy.check_extra(wake_request, {})
        change = await management.wake(_allowed(request.path_params["id"]))
        return await answer_change(request, change, wake_request, registry, limits)

    _add_vllm_routes(router, management)
    return router


def _add_vllm_routes(router: APIRouter, management: ModelManagement) -> None:
    def named(request: Request, *known: str) -> str:
        _check_query(request.query_params, "model", *known)
        return _allowed(management.sleeping_name(request.query_params.get("model")))

    @router.post("/sleep", responses=ERRORS)
    async def sleep(request: Request) -> Response:
        """Puts a model to sleep. `level` is 1 or 2; `model` is optional if only one can sleep."""
        level = _level(request.query_params)
        await (await management.sleep(named(request, "level"), level)).done()
        return Response()

    @router.post("/wake_up", responses=ERRORS)
    async def wake_up(request: Request) -> Response:
        """Wakes a model as a whole, without vLLM's `tags`."""
        await (await management.wake(named(request))).done()
        return Response()

    @router.get("/is_sleeping", responses={200: {"model": SleepState}, **ERRORS})
    async def is_sleeping(request: Request) -> Response:
        """Whether the model sleeps."""
        state = SleepState(is_sleeping=management.is_sleeping(named(request)))
        return Response(state.model_dump_json(), media_type="application/json")


def _allowed(name: str) -> str:
    check_allowed(current_request().principal, name)
    return name


def _level(query: Mapping[str, str]) -> int:
    """vLLM's default is 1."""
    level = query.get("level", "1")
    if level not in ("1", "2"):
        raise InvalidRequest("Invalid 'level': expected 1 or 2.", param="level")
    return int(level)


def _check_query(query: Mapping[str, str], *known: str) -> None:
    for name in query:
        if name not in known:
            message = f"Unsupported parameter: '{name[:64]}' in the URL's query."
            raise InvalidRequest(message, param=name[:64], code="unsupported_parameter")
