"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from functools import partial

from fastapi import APIRouter, Request, Response

from openai_frontend.lora.management import LoRAManagement
from openai_frontend.routers.models import model_of
from openai_frontend.routers.openapi import ERRORS, request_body
from openai_frontend.routers.request import principal_of, read_body
from openai_frontend.routers.routing import AdminRoute
from openai_frontend.serving.admission.authorized_models import allows
from openai_frontend.serving.request.field_policy import FieldPolicy, Neutral
from openai_frontend.serving.request.request_body import BodyReader
from schemas.models import AdapterUnloaded, LoadLoRAAdapterRequest, Model, UnloadLoRAAdapterRequest

# vLLM's fields: the layout of expert weights in the file, and its own adapter number
_NEUTRAL_TO_LOAD: Neutral = {"is_3d_lora_weight": (False,)}
_NEUTRAL_TO_UNLOAD: Neutral = {"lora_int_id": ()}


def lora_router(management: LoRAManagement, policy: FieldPolicy) -> APIRouter:
    """Both answer when the change is done."""
    router = APIRouter(tags=["models"], route_class=AdminRoute)
    to_load, to_unload = BodyReader(LoadLoRAAdapterRequest), BodyReader(UnloadLoRAAdapterRequest)

    @router.post(
        "/v1/load_lora_adapter",
        openapi_extra=request_body(LoadLoRAAdapterRequest),
        responses={200: {"model": Model}, **ERRORS},
    )
    async def load_lora_adapter(request: Request) -> Response:
        """Loads an adapter by its name from the operator's folders."""
        asked = await to_load.read(await read_body(request.receive))
        policy.check_extra(asked, _NEUTRAL_TO_LOAD)
        may_name = partial(allows, principal_of(request))
        named = asked.lora_name, asked.model
        card = await management.load(*named, asked.lora_path, may_name=may_name)
        return Response(model_of(card).model_dump_json(), media_type="application/json")

    @router.post(
        "/v1/unload_lora_adapter",
        openapi_extra=request_body(UnloadLoRAAdapterRequest),
        responses={200: {"model": AdapterUnloaded}, **ERRORS},
    )
    async def unload_lora_adapter(request: Request) -> Response:
        """Unloads an adapter; running requests keep it."""
        asked = await to_unload.read(await read_body(request.receive))
        policy.check_extra(asked, _NEUTRAL_TO_UNLOAD)
        may_name = partial(allows, principal_of(request))
        name = await management.unload(asked.lora_name, asked.model, may_name=may_name)
        gone = AdapterUnloaded(id=name)
        return Response(gone.model_dump_json(), media_type="application/json")

    return router
