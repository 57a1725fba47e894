"""POST /tokenize and /detokenize, also under /v1, and /render for chats and completions."""

from collections.abc import Mapping, Sequence

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.chat import ADJUSTED_PARAMETERS, adjusted_parameters
from openai_frontend.routers.openapi import ERRORS, request_body
from openai_frontend.routers.request import CancelOnDisconnect, read_body, resolve_loaded
from openai_frontend.routers.routing import InferenceRoute
from openai_frontend.serving.dialects.chat import ChatCompletions
from openai_frontend.serving.dialects.completions import Completions
from openai_frontend.serving.request.request_body import BodyReader
from openai_frontend.serving.tokenization import Tokenization, rendered
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from schemas.tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    RenderedPrompt,
    TokenizeRequest,
    TokenizeResponse,
)


def tokenization_router(registry: ModelRegistry, tokenization: Tokenization) -> APIRouter:
    """vLLM's paths, and the same under /v1 for clients with one base URL."""
    router = APIRouter(tags=["Tokens"], route_class=InferenceRoute)
    texts, tokens = BodyReader(TokenizeRequest), BodyReader(DetokenizeRequest)

    async def tokenize(request: Request) -> Response:
        """Tokenizes a text or a chat."""
        tokenize_request = await texts.read(await read_body(request.receive))
        model = await resolve_loaded(registry, tokenize_request.model)
        with CancelOnDisconnect():  # fetching media may take seconds
            return _json(await tokenization.tokenize(tokenize_request, model))

    async def detokenize(request: Request) -> Response:
        """Converts tokens to text."""
        detokenize_request = await tokens.read(await read_body(request.receive))
        model = await resolve_loaded(registry, detokenize_request.model)
        return _json(await tokenization.detokenize(detokenize_request, model))

    for path in ("/tokenize", "/v1/tokenize"):
        router.post(
            path,
            openapi_extra=request_body(TokenizeRequest),
            responses={200: {"model": TokenizeResponse}, **ERRORS},
        )(tokenize)
    for path in ("/detokenize", "/v1/detokenize"):
        router.post(
            path,
            openapi_extra=request_body(DetokenizeRequest),
            responses={200: {"model": DetokenizeResponse}, **ERRORS},
        )(detokenize)
    return router


def render_router(
    registry: ModelRegistry, chat: ChatCompletions, completions: Completions
) -> APIRouter:
    """Bodies and errors are those of the endpoints themselves, responses those of vLLM."""
    router = APIRouter(tags=["Tokens"], route_class=InferenceRoute)
    chats, texts = BodyReader(ChatCompletionRequest), BodyReader(CompletionRequest)

    @router.post(
        "/v1/chat/completions/render",
        openapi_extra=request_body(ChatCompletionRequest),
        responses={200: {"model": RenderedPrompt, "headers": ADJUSTED_PARAMETERS}, **ERRORS},
    )
    async def render_chat_completion(request: Request) -> Response:
        """Renders the prompt of a conversation without running the model."""
        chat_request = await chats.read(await read_body(request.receive))
        model = await resolve_loaded(registry, chat_request.model, "chat")
        with CancelOnDisconnect():
            job = await chat.build_job(chat_request, model)
        [only] = await rendered(job, chat_request)
        return _json(only, adjusted_parameters(job.adjusted))

    @router.post(
        "/v1/completions/render",
        openapi_extra=request_body(CompletionRequest),
        responses={200: {"model": list[RenderedPrompt]}, **ERRORS},
    )
    async def render_completion(request: Request) -> Response:
        """Renders each prompt without running the model."""
        completion_request = await texts.read(await read_body(request.receive))
        model = await resolve_loaded(registry, completion_request.model, "completions")
        return _json(
            await rendered(
                await completions.build_job(completion_request, model), completion_request
            )
        )

    return router


def _json(
    response: BaseModel | Sequence[BaseModel], headers: Mapping[str, str] | None = None
) -> Response:
    """Uses orjson, which takes 15 ms for a million ids instead of pydantic's 80 ms."""
    body = orjson.dumps(response, default=vars, option=orjson.OPT_NON_STR_KEYS)
    return Response(body, headers=headers, media_type="application/json")
