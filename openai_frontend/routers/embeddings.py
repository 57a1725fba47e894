"""POST /v1/embeddings."""

from fastapi import APIRouter, Request, Response

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.openapi import ERRORS, request_body
from openai_frontend.routers.request import CancelOnDisconnect, read_body, resolve_model
from openai_frontend.routers.routing import InferenceRoute
from openai_frontend.serving.embeddings import Embeddings
from openai_frontend.serving.request.request_body import BodyReader
from schemas.embeddings import CreateEmbeddingResponse, EmbeddingRequest


def embeddings_router(registry: ModelRegistry, embeddings: Embeddings) -> APIRouter:
    """Sends `serving`'s bytes unchanged, because a pydantic model per vector is too expensive."""
    router = APIRouter(tags=["embeddings"], route_class=InferenceRoute)
    reader = BodyReader(EmbeddingRequest)

    @router.post(
        "/v1/embeddings",
        openapi_extra=request_body(EmbeddingRequest),
        responses={200: {"model": CreateEmbeddingResponse}, **ERRORS},
    )
    async def create_embedding(request: Request) -> Response:
        """Computes embeddings of texts."""
        embedding_request = await reader.read(await read_body(request.receive))
        model = await resolve_model(request, registry, embedding_request.model, "embeddings")
        with CancelOnDisconnect(request.scope):
            body = await embeddings.create(embedding_request, model)
        return Response(body, media_type="application/json")

    return router
