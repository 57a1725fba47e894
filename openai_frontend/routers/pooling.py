"""The routes of pooling models: embeddings, classification, moderation, reranking and scores."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, TypeAdapter

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.tasks import Capability
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

_R = TypeVar(
    "_R",
    EmbeddingRequest,
    TextsEmbedRequest,
    PoolingRequest,
    ClassificationRequest,
    ModerationRequest,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRoute(Generic[_R]):
    """A route that reads one body, resolves its model and sends `serving`'s bytes unchanged: a
    pydantic model per vector is too expensive.
    """

    name: str  # of the handler: the API's description derives its ids from it
    about: str
    tag: str
    paths: tuple[str, ...]
    request: type[_R]
    response: Any  # a type that pydantic describes
    capability: Capability
    create: Callable[[_R, ServingModel], Awaitable[bytes]]


def embedding_routes(embeddings: Embeddings, tasks: PoolingTasks) -> list[VectorRoute[Any]]:
    """Dense and sparse embeddings, and vLLM's pooling with and without a version in the path."""
    return [
        VectorRoute(
            name="create_embedding",
            about="Computes embeddings of texts.",
            tag="Embeddings",
            paths=("/v1/embeddings",),
            request=EmbeddingRequest,
            response=CreateEmbeddingResponse,
            capability="embeddings",
            create=embeddings.create,
        ),
        VectorRoute(
            name="create_sparse_embedding",
            about="Computes sparse embeddings (format of text-embeddings-inference).",
            tag="Embeddings",
            paths=("/embed_sparse",),
            request=TextsEmbedRequest,
            response=list[list[SparseValue]],
            capability="sparse_embeddings",
            create=embeddings.create_for_texts,
        ),
        VectorRoute(
            name="create_pooling",
            about="Pools inputs, also each token (format of vLLM).",
            tag="Embeddings",
            paths=("/v1/pooling", "/pooling"),
            request=PoolingRequest,
            response=PoolingResponse,
            capability="embeddings",
            create=tasks.create,
        ),
    ]


def classifier_routes(
    classification: Classification, moderations: Moderations
) -> list[VectorRoute[Any]]:
    """Classification with and without a version in the path, and moderation."""
    return [
        VectorRoute(
            name="create_classification",
            about="Classifies texts (format of vLLM).",
            tag="Classification",
            paths=("/v1/classify", "/classify"),
            request=ClassificationRequest,
            response=ClassificationResponse,
            capability="classification",
            create=classification.create,
        ),
        VectorRoute(
            name="create_moderation",
            about="Scores texts by OpenAI's categories of moderation.",
            tag="Classification",
            paths=("/v1/moderations",),
            request=ModerationRequest,
            response=ModerationCreateResponse,
            capability="moderation",
            create=moderations.create,
        ),
    ]


def vector_router(registry: ModelRegistry, routes: Iterable[VectorRoute[Any]]) -> APIRouter:
    """One endpoint for each path."""
    router = APIRouter(route_class=InferenceRoute)
    for route in routes:
        endpoint = _endpoint(registry, route)
        for path in route.paths:
            router.add_api_route(
                path,
                endpoint,
                methods=["POST"],
                name=route.name,
                description=route.about,
                tags=[route.tag],
                openapi_extra=request_body(route.request),
                responses={200: {"model": route.response}, **ERRORS},
            )
    return router


def _endpoint(
    registry: ModelRegistry, route: VectorRoute[_R]
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    reader = BodyReader(route.request)

    async def answer(request: Request) -> Response:
        body = await reader.read(await read_body(request.receive))
        model = await resolve_model(registry, body.model, route.capability)
        with CancelOnDisconnect():
            return JsonResponse(await route.create(body, model))

    return answer


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
