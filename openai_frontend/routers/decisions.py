"""POST /v1/decisions."""

from fastapi import APIRouter, Request, Response

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.openapi import ERRORS, request_body
from openai_frontend.routers.request import CancelOnDisconnect, read_body, resolve_model
from openai_frontend.routers.routing import InferenceRoute, JsonResponse
from openai_frontend.serving.dialects.responses.decisions import Decisions
from openai_frontend.serving.request.request_body import BodyReader
from schemas.decisions import Decision, DecisionRequest


def decisions_router(registry: ModelRegistry, decisions: Decisions) -> APIRouter:
    """The route of decisions, which are never streamed."""
    router = APIRouter(tags=["Decisions"], route_class=InferenceRoute)
    reader = BodyReader(DecisionRequest)

    @router.post(
        "/v1/decisions",
        openapi_extra=request_body(DecisionRequest),
        responses={200: {"model": Decision}, **ERRORS},
    )
    async def create_decision(request: Request) -> Response:
        """Answers questions about an input with probabilities."""
        decision_request = await reader.read(await read_body(request.receive))
        model = await resolve_model(registry, decision_request.model, "chat")
        with CancelOnDisconnect():  # fetching media may take seconds
            body = await decisions.create(decision_request, model)
        return JsonResponse(body)

    return router
