"""GET /v1/models and /v1/models/{id}."""

import dataclasses

from fastapi import APIRouter, Request, Response

from openai_frontend.model_registry import ModelRegistry
from openai_frontend.routers.caller import models_for
from openai_frontend.routers.direct_route import ModelsRoute
from openai_frontend.routers.openapi import ERRORS
from openai_frontend.served_model import ModelCard
from schemas.models import Capabilities, Model, ModelList


def models_router(registry: ModelRegistry) -> APIRouter:
    """Reads the registry's cards."""
    router = APIRouter(tags=["models"], route_class=ModelsRoute)

    @router.get("/v1/models", responses={200: {"model": ModelList}, **ERRORS})
    async def list_models(request: Request) -> Response:
        """The models that requests can name."""
        models = ModelList(data=[_model(card) for card in models_for(request, registry).cards()])
        return Response(models.model_dump_json(), media_type="application/json")

    # An id may contain slashes, as Hugging Face's names do.
    @router.get("/v1/models/{id:path}", responses={200: {"model": Model}, **ERRORS})
    async def retrieve_model(request: Request) -> Response:
        """One model; one that failed to load is shown with its error."""
        card = models_for(request, registry).card(request.path_params["id"])
        return Response(_model(card).model_dump_json(), media_type="application/json")

    return router


def _model(card: ModelCard) -> Model:
    return Model(
        id=card.name,
        created=card.created,
        owned_by=card.owned_by,
        root=card.root,
        parent=card.parent,
        max_model_len=card.max_model_len,
        capabilities=Capabilities(**dataclasses.asdict(card.capabilities)),
        description=card.description,
        ready=card.ready,
        error=card.error,
    )
