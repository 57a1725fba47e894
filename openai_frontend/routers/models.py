"""GET /v1/models and /v1/models/{id}; POST .../load and .../unload; loading LoRA adapters."""

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

from fastapi import APIRouter, Request, Response
from sse_starlette.sse import EventSourceResponse

from openai_frontend.errors import GatewayError, ModelNotFound
from openai_frontend.models.lora_management import LoRAManagement
from openai_frontend.models.management import ModelChange, ModelManagement
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.anthropic_models import anthropic_model, anthropic_page
from openai_frontend.routers.described_model import MediaLimits, model_of, models_of
from openai_frontend.routers.messages import request_id_header
from openai_frontend.routers.openapi import ERRORS, optional_body, request_body
from openai_frontend.routers.request import authorized_models, read_body
from openai_frontend.routers.routing import AdminRoute, ModelsRoute
from openai_frontend.serving.admission.authorized_models import allows, check_allowed
from openai_frontend.serving.admission.model_lookup import with_known_names
from openai_frontend.serving.error_reply import reply_for
from openai_frontend.serving.request.field_policy import FieldPolicy, Neutral
from openai_frontend.serving.request.request_body import BodyReader
from schemas.messages import AnthropicModel, AnthropicModelList
from schemas.models import (
    AdapterUnloaded,
    LoadLoRAAdapterRequest,
    Model,
    ModelChangeRequest,
    ModelList,
    ModelProgress,
    UnloadLoRAAdapterRequest,
)

Event = dict[str, str]  # in sse-starlette's form


_ANTHROPIC = "anthropic-version"  # the header of clients that read Anthropic's form
_PING_S = 15  # seconds between comments that keep proxies from closing a quiet stream


def models_router(registry: ModelRegistry, limits: MediaLimits) -> APIRouter:
    router = APIRouter(tags=["Models"], route_class=ModelsRoute)
    describe = partial(model_of, limits=limits)

    @router.get("/v1/models", responses={200: {"model": ModelList}, **ERRORS})
    async def list_models(request: Request) -> Response:
        """Lists the models that requests can name."""
        cards = authorized_models(registry).cards()
        if _ANTHROPIC in request.headers:
            return _for_anthropic(anthropic_page(cards, request.query_params))
        models = ModelList(data=models_of(cards, limits))
        return Response(models.model_dump_json(), media_type="application/json")

    # Ids may contain slashes, as Hugging Face's do.
    @router.get("/v1/models/{id:path}", responses={200: {"model": Model}, **ERRORS})
    async def retrieve_model(request: Request) -> Response:
        """Describes a model; one that failed to load has its error."""
        models, name = authorized_models(registry), request.path_params["id"]
        try:
            card = models.card(name)
        except ModelNotFound as error:
            raise with_known_names(error, models, name) from None
        if _ANTHROPIC in request.headers:
            return _for_anthropic(anthropic_model(card))
        return Response(describe(card).model_dump_json(), media_type="application/json")

    return router


def _for_anthropic(answer: AnthropicModel | AnthropicModelList) -> Response:
    body = answer.model_dump_json()
    return Response(body, headers=request_id_header(), media_type="application/json")


def management_router(
    registry: ModelRegistry,
    management: ModelManagement,
    policy: FieldPolicy,
    limits: MediaLimits,
) -> APIRouter:
    """Both answer when the change is done, or stream its progress."""
    router = APIRouter(tags=["Models"], route_class=AdminRoute)
    reader = BodyReader(ModelChangeRequest)
    extra = optional_body(ModelChangeRequest, ModelProgress)

    async def answer(request: Request, begin: Callable[[str], Awaitable[ModelChange]]) -> Response:
        body = await read_body(request.receive)
        change_request = await reader.read(body) if body else ModelChangeRequest()
        policy.check_extra(change_request, {})
        name: str = request.path_params["id"]
        check_allowed(current_request().principal, name)
        change = await begin(name)
        return await answer_change(request, change, change_request, registry, limits)

    @router.post(
        "/v1/models/{id:path}/load",
        openapi_extra=extra,
        responses={200: {"model": Model}, **ERRORS},
    )
    async def load_model(request: Request) -> Response:
        """Loads or reloads a model. Meanwhile, requests use the previous one."""
        return await answer(request, management.load)

    @router.post(
        "/v1/models/{id:path}/unload",
        openapi_extra=extra,
        responses={200: {"model": Model}, **ERRORS},
    )
    async def unload_model(request: Request) -> Response:
        """Unloads a model after its running requests; an ensemble with its steps."""
        return await answer(request, management.unload)

    return router


async def answer_change(
    request: Request,
    change: ModelChange,
    change_request: ModelChangeRequest,
    registry: ModelRegistry,
    limits: MediaLimits,
) -> Response:
    """The model when the change is done, or a stream of its progress."""
    if change_request.stream or _wants_events(request):
        return EventSourceResponse(_events(change), ping=_PING_S, sep="\n")
    await change.done()
    card = model_of(registry.card(change.model), limits)
    return Response(card.model_dump_json(), media_type="application/json")


def _wants_events(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


async def _events(change: ModelChange) -> AsyncGenerator[Event, None]:
    """The last event reports completion or an error."""
    try:
        async for progress in change.progress():
            event = ModelProgress(**dataclasses.asdict(progress))
            yield {"data": event.model_dump_json()}
    except GatewayError as error:  # the status is already sent
        yield {"data": reply_for(error).body.decode()}


# vLLM's fields: the layout of expert weights in the file, and its own adapter number
_NEUTRAL_TO_LOAD: Neutral = {"is_3d_lora_weight": (False,)}
_NEUTRAL_TO_UNLOAD: Neutral = {"lora_int_id": ()}


def lora_router(management: LoRAManagement, policy: FieldPolicy, limits: MediaLimits) -> APIRouter:
    """Both answer when the change is done."""
    router = APIRouter(tags=["Models"], route_class=AdminRoute)
    to_load, to_unload = BodyReader(LoadLoRAAdapterRequest), BodyReader(UnloadLoRAAdapterRequest)

    @router.post(
        "/v1/load_lora_adapter",
        openapi_extra=request_body(LoadLoRAAdapterRequest),
        responses={200: {"model": Model}, **ERRORS},
    )
    async def load_lora_adapter(request: Request) -> Response:
        """Loads an adapter by its name from the operator's folders."""
        load_request = await to_load.read(await read_body(request.receive))
        policy.check_extra(load_request, _NEUTRAL_TO_LOAD)
        may_name = partial(allows, current_request().principal)
        named = load_request.lora_name, load_request.model
        card = await management.load(*named, load_request.lora_path, may_name=may_name)
        return Response(model_of(card, limits).model_dump_json(), media_type="application/json")

    @router.post(
        "/v1/unload_lora_adapter",
        openapi_extra=request_body(UnloadLoRAAdapterRequest),
        responses={200: {"model": AdapterUnloaded}, **ERRORS},
    )
    async def unload_lora_adapter(request: Request) -> Response:
        """Unloads an adapter; running requests keep it."""
        unload_request = await to_unload.read(await read_body(request.receive))
        policy.check_extra(unload_request, _NEUTRAL_TO_UNLOAD)
        may_name = partial(allows, current_request().principal)
        name = await management.unload(
            unload_request.lora_name, unload_request.model, may_name=may_name
        )
        gone = AdapterUnloaded(id=name)
        return Response(gone.model_dump_json(), media_type="application/json")

    return router
