"""POST /internal/prefill and GET /internal/health, on a listener for decode servers only."""

from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from openai_frontend.models.prefill_peers import HEALTH_PATH, PREFILL_PATH
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.request import CancelOnDisconnect, read_body, record_model
from openai_frontend.routers.routing import TransferRoute
from openai_frontend.serving.admission.authorized_models import check_allowed
from openai_frontend.serving.prefill import Prefill, model_name
from openai_frontend.serving.request.request_body import BodyReader
from schemas.transfer import PrefillHealth, PrefillRequest


def transfer_router(
    registry: ModelRegistry, prefill: Prefill, is_ready: Callable[[], bool]
) -> APIRouter:
    """`is_ready` is false from the start of a shutdown."""
    router = APIRouter(route_class=TransferRoute)
    bodies = BodyReader(PrefillRequest)

    @router.post(PREFILL_PATH)
    async def create_prefill(request: Request) -> Response:
        """Compute a prompt, unless the decode server disconnects."""
        prefill_request = await bodies.read(await read_body(request.receive))
        name = model_name(prefill_request)
        check_allowed(current_request().principal, name)
        with CancelOnDisconnect():
            await registry.ensure_loaded(name)
            model = registry.get(name)
            record_model(model)
            prefill_response = await prefill.create(prefill_request, model)
        return Response(prefill_response.model_dump_json(), media_type="application/json")

    @router.get(HEALTH_PATH)
    async def get_health(request: Request) -> Response:
        """200 while prompts are accepted, else 503."""
        ready = is_ready()
        health = PrefillHealth(status="ready" if ready else "not ready")
        status = 200 if ready else 503
        return Response(health.model_dump_json(), status, media_type="application/json")

    return router
