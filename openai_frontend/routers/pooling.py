"""The routes of pooling models: embeddings, classification, moderation, reranking and scores."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, TypeAdapter

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.openapi import ERRORS, request_body
from openai_frontend.routers.request import CancelOnDisconnect, read_body, resolve_model
from openai_frontend.routers.routing import InferenceRoute, JsonResponse
from openai_frontend.serving.admission.model import ServingModel
from openai_frontend.serving.classification import Classification
from openai_frontend.serving.embeddings import Embeddings
from openai_frontend.serving.moderation import Moderations
from openai_frontend.serving.pooling_tasks import PoolingTasks
from openai_frontend.serving.request.request_body import BodyReader
from openai_frontend.serving.scoring import Reranking, Scoring, has_texts
from schemas.classification import ClassificationRequest, ClassificationResponse
from schemas.embeddings import (
    CreateEmbeddingResponse,
    EmbeddingRequest,
    SparseValue,
    TextsEmbedRequest,
)
from schemas.moderations import ModerationCreateResponse, ModerationRequest
from schemas.pooling import PoolingRequest, PoolingResponse
from schemas.rerank import (
    CohereRerankResponse,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
    TextRank,
    TextsRerankRequest,
)


def embeddings_router(registry: ModelRegistry, embeddings: Embeddings) -> APIRouter:
    """Sends `serving`'s bytes unchanged, because a pydantic model per vector is too expensive."""
    router = APIRouter(tags=["Embeddings"], route_class=InferenceRoute)
    reader = BodyReader(EmbeddingRequest)

    @router.post(
        "/v1/embeddings",
        openapi_extra=request_body(EmbeddingRequest),
        responses={200: {"model": CreateEmbeddingResponse}, **ERRORS},
    )
    async def create_embedding(request: Request) -> Response:
        """Computes embeddings of texts."""
        embedding_request = await reader.read(await read_body(request.receive))
        model = await resolve_model(registry, embedding_request.model, "embeddings")
        with CancelOnDisconnect():
            body = await embeddings.create(embedding_request, model)
        return JsonResponse(body)

    return router


def sparse_router(registry: ModelRegistry, embeddings: Embeddings) -> APIRouter:
    """text-embeddings-inference's path."""
    router = APIRouter(tags=["Embeddings"], route_class=InferenceRoute)
    reader = BodyReader(TextsEmbedRequest)

    @router.post(
        "/embed_sparse",
        openapi_extra=request_body(TextsEmbedRequest),
        responses={200: {"model": list[list[SparseValue]]}, **ERRORS},
    )
    async def create_sparse_embedding(request: Request) -> Response:
        """Computes sparse embeddings (format of text-embeddings-inference)."""
        embed_request = await reader.read(await read_body(request.receive))
        model = await resolve_model(registry, embed_request.model, "embeddings")
        with CancelOnDisconnect():
            body = await embeddings.create_for_texts(embed_request, model)
        return JsonResponse(body)

    return router


def classification_router(registry: ModelRegistry, classification: Classification) -> APIRouter:
    """vLLM's path, and the same with a version."""
    router = APIRouter(tags=["Classification"], route_class=InferenceRoute)
    reader = BodyReader(ClassificationRequest)

    @router.post(
        "/v1/classify",
        openapi_extra=request_body(ClassificationRequest),
        responses={200: {"model": ClassificationResponse}, **ERRORS},
    )
    @router.post(
        "/classify",
        openapi_extra=request_body(ClassificationRequest),
        responses={200: {"model": ClassificationResponse}, **ERRORS},
    )
    async def create_classification(request: Request) -> Response:
        """Classifies texts (format of vLLM)."""
        classification_request = await reader.read(await read_body(request.receive))
        model = await resolve_model(registry, classification_request.model, "classification")
        with CancelOnDisconnect():
            body = await classification.create(classification_request, model)
        return JsonResponse(body)

    return router


def pooling_router(registry: ModelRegistry, tasks: PoolingTasks) -> APIRouter:
    """vLLM's path, and the same with a version."""
    router = APIRouter(tags=["Embeddings"], route_class=InferenceRoute)
    reader = BodyReader(PoolingRequest)

    @router.post(
        "/v1/pooling",
        openapi_extra=request_body(PoolingRequest),
        responses={200: {"model": PoolingResponse}, **ERRORS},
    )
    @router.post(
        "/pooling",
        openapi_extra=request_body(PoolingRequest),
        responses={200: {"model": PoolingResponse}, **ERRORS},
    )
    async def create_pooling(request: Request) -> Response:
        """Pools inputs, also each token (format of vLLM)."""
        pooling_request = await reader.read(await read_body(request.receive))
        model = await resolve_model(registry, pooling_request.model, "embeddings")
        with CancelOnDisconnect():
            body = await tasks.create(pooling_request, model)
        return JsonResponse(body)

    return router


def moderation_router(registry: ModelRegistry, moderations: Moderations) -> APIRouter:
    """OpenAI's path."""
    router = APIRouter(tags=["Classification"], route_class=InferenceRoute)
    reader = BodyReader(ModerationRequest)

    @router.post(
        "/v1/moderations",
        openapi_extra=request_body(ModerationRequest),
        responses={200: {"model": ModerationCreateResponse}, **ERRORS},
    )
    async def create_moderation(request: Request) -> Response:
        """Scores texts by OpenAI's categories of moderation."""
        moderation_request = await reader.read(await read_body(request.receive))
        model = await resolve_model(registry, moderation_request.model, "moderation")
        with CancelOnDisconnect():
            body = await moderations.create(moderation_request, model)
        return JsonResponse(body)

    return router


_Create = Callable[[RerankRequest, ServingModel], Awaitable[BaseModel]]

_TEXT_RANKS = TypeAdapter(list[TextRank])


class _Documents:
    """Parses and answers rerank requests."""

    def __init__(self, registry: ModelRegistry, reranking: Reranking) -> None:
        self._registry = registry
        self._reranking = reranking
        self._reader = BodyReader(RerankRequest)
        self._texts_reader = BodyReader(TextsRerankRequest)

    async def answer(self, request: Request, body: bytes, create: _Create) -> Response:
        """Accepts the format of Jina, vLLM and Cohere; `create` sets the response format."""
        rerank_request = await self._reader.read(body)
        model = await resolve_model(self._registry, rerank_request.model, "rerank")
        with CancelOnDisconnect():
            return _json(await create(rerank_request, model))

    async def answer_texts(self, request: Request, body: bytes) -> Response:
        """Accepts and returns the format of text-embeddings-inference."""
        rerank_request = await self._texts_reader.read(body)
        model = await resolve_model(self._registry, rerank_request.model, "rerank")
        with CancelOnDisconnect():
            ranks = await self._reranking.create_for_texts(rerank_request, model)
        document = _TEXT_RANKS.dump_json(ranks, exclude_none=True)
        return Response(document, media_type="application/json")


def rerank_router(registry: ModelRegistry, reranking: Reranking) -> APIRouter:
    """The path selects the response format."""
    router = APIRouter(tags=["Rerank and score"], route_class=InferenceRoute)
    documents = _Documents(registry, reranking)

    @router.post(
        "/v1/rerank",
        openapi_extra=request_body(RerankRequest),
        responses={200: {"model": RerankResponse}, **ERRORS},
    )
    async def create_rerank(request: Request) -> Response:
        """Sorts documents by relevance to a query (format of Jina and vLLM)."""
        return await documents.answer(request, await read_body(request.receive), reranking.create)

    @router.post(
        "/v2/rerank",
        openapi_extra=request_body(RerankRequest),
        responses={200: {"model": CohereRerankResponse}, **ERRORS},
    )
    async def create_rerank_for_cohere(request: Request) -> Response:
        """Sorts documents by relevance to a query (format of Cohere)."""
        return await documents.answer(
            request, await read_body(request.receive), reranking.create_for_cohere
        )

    @router.post(
        "/rerank",
        openapi_extra=request_body(RerankRequest, TextsRerankRequest),
        responses={200: {"model": RerankResponse | list[TextRank]}, **ERRORS},
    )
    async def create_rerank_for_either(request: Request) -> Response:
        """Like /v1/rerank; a body with `texts` uses the format of text-embeddings-inference."""
        body = await read_body(request.receive)
        if has_texts(body):
            return await documents.answer_texts(request, body)
        return await documents.answer(request, body, reranking.create)

    return router


def score_router(registry: ModelRegistry, scoring: Scoring) -> APIRouter:
    """vLLM's path and its successor."""
    router = APIRouter(tags=["Rerank and score"], route_class=InferenceRoute)
    reader = BodyReader(ScoreRequest)

    @router.post(
        "/v1/score",
        openapi_extra=request_body(ScoreRequest),
        responses={200: {"model": ScoreResponse}, **ERRORS},
    )
    @router.post(
        "/score",
        openapi_extra=request_body(ScoreRequest),
        responses={200: {"model": ScoreResponse}, **ERRORS},
    )
    async def create_score(request: Request) -> Response:
        """Scores pairs of texts (format of vLLM)."""
        score_request = await reader.read(await read_body(request.receive))
        model = await resolve_model(registry, score_request.model, "rerank")
        with CancelOnDisconnect():
            return _json(await scoring.create(score_request, model))

    return router


def _json(response: BaseModel) -> Response:
    return Response(response.model_dump_json(exclude_none=True), media_type="application/json")
