"""POST /v1/rerank, /v2/rerank, /rerank and /v1/score."""

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, TypeAdapter

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.caller import model_for, models_for, noted
from openai_frontend.routers.direct_route import InferenceRoute
from openai_frontend.routers.disconnect import CancelledOnDisconnect
from openai_frontend.routers.openapi import ERRORS, request_body
from openai_frontend.serving.request_body import BodyReader
from openai_frontend.serving.rerank import Reranking, has_texts, only_ranker
from openai_frontend.serving.scoring import Scoring
from schemas.rerank import (
    CohereRerankResponse,
    RerankRequest,
    RerankResponse,
    TextRank,
    TextsRerankRequest,
)
from schemas.score import ScoreRequest, ScoreResponse

_TEXT_RANKS = TypeAdapter(list[TextRank])


def rerank_router(registry: ModelRegistry, reranking: Reranking) -> APIRouter:
    """The same documents in, the dialect of the address out."""
    router = APIRouter(tags=["rerank"], route_class=InferenceRoute)
    reader = BodyReader(RerankRequest)
    texts_reader = BodyReader(TextsRerankRequest)

    @router.post(
        "/v1/rerank",
        openapi_extra=request_body(RerankRequest),
        responses={200: {"model": RerankResponse}, **ERRORS},
    )
    async def create_rerank(request: Request) -> Response:
        """Sorts documents by how well they answer a query (Jina's and vLLM's form)."""
        rerank_request = await reader.read_in_turns(await request.body())
        model = await model_for(request, registry, rerank_request.model)
        with CancelledOnDisconnect(request.scope):
            return _json(await reranking.create(rerank_request, model))

    @router.post(
        "/v2/rerank",
        openapi_extra=request_body(RerankRequest),
        responses={200: {"model": CohereRerankResponse}, **ERRORS},
    )
    async def create_rerank_for_cohere(request: Request) -> Response:
        """Sorts documents by how well they answer a query (Cohere's form)."""
        rerank_request = await reader.read_in_turns(await request.body())
        model = await model_for(request, registry, rerank_request.model)
        with CancelledOnDisconnect(request.scope):
            return _json(await reranking.create_for_cohere(rerank_request, model))

    @router.post(
        "/rerank",
        openapi_extra=request_body(RerankRequest, TextsRerankRequest),
        responses={200: {"model": RerankResponse | list[TextRank]}, **ERRORS},
    )
    async def create_rerank_for_either(request: Request) -> Response:
        """As /v1/rerank; a body with `texts` is answered as text-embeddings-inference does."""
        body = await request.body()
        if not has_texts(body):
            return await create_rerank(request)
        texts_request = await texts_reader.read_in_turns(body)
        if (name := texts_request.model) is None:
            model = noted(request, only_ranker(models_for(request, registry)))
        else:
            model = await model_for(request, registry, name)
        with CancelledOnDisconnect(request.scope):
            ranks = await reranking.create_for_texts(texts_request, model)
        body = _TEXT_RANKS.dump_json(ranks, exclude_none=True)
        return Response(body, media_type="application/json")

    return router


def score_router(registry: ModelRegistry, scoring: Scoring) -> APIRouter:
    """vLLM's address, and the one that it has moved to."""
    router = APIRouter(tags=["rerank"], route_class=InferenceRoute)
    reader = BodyReader(ScoreRequest)

    @router.post(
        "/v1/score",
        openapi_extra=request_body(ScoreRequest),
        responses={200: {"model": ScoreResponse}, **ERRORS},
    )
    @router.post("/score", include_in_schema=False)
    async def create_score(request: Request) -> Response:
        """Scores pairs of texts (vLLM's form)."""
        score_request = await reader.read_in_turns(await request.body())
        model = await model_for(request, registry, score_request.model)
        with CancelledOnDisconnect(request.scope):
            return _json(await scoring.create(score_request, model))

    return router


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")
