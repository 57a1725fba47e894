"""POST /v1/chat/completions."""

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.openapi import ERRORS, request_body
from openai_frontend.routers.request import (
    CancelOnDisconnect,
    read_body,
    resolve_guarded,
    resolve_model,
)
from openai_frontend.routers.routing import InferenceRoute, JsonResponse, raw_headers
from openai_frontend.routers.streaming import EventStream, StreamLimits
from openai_frontend.serving.dialects.chat import ChatCompletions, chunks, complete
from openai_frontend.serving.guard import GuardModel, Guards, guarded, prompt_texts
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.request.request_body import FindMember, RepeatedBodyReader
from schemas.chat_completions import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
)


def chat_router(
    registry: ModelRegistry,
    chat: ChatCompletions,
    streams: StreamLimits,
    find_member: FindMember,
    guards: Guards,
) -> APIRouter:
    """Reads the body itself, because FastAPI's parsing would cost more than the rest."""
    router = APIRouter(tags=["Chat"], route_class=InferenceRoute)
    reader = RepeatedBodyReader(ChatCompletionRequest, "messages", find_member)

    @router.post(
        "/v1/chat/completions",
        openapi_extra=request_body(ChatCompletionRequest, chunk=ChatCompletionChunk),
        responses={200: {"model": ChatCompletion, "headers": ADJUSTED_PARAMETERS}, **ERRORS},
    )
    async def create_chat_completion(request: Request) -> Response:
        """Answers a conversation, complete or as a stream of chunks."""
        chat_request, known = await reader.read_known(await read_body(request.receive))
        asked, named = chat_request.moderation, None
        name, priority = chat_request.model, chat_request.priority
        if asked is None:
            model = await resolve_model(registry, name, "chat", priority=priority)
        else:
            named, model = await resolve_guarded(registry, asked.model, name, priority=priority)
        with CancelOnDisconnect():  # fetching media may take seconds
            job = await chat.prepare(chat_request, model, known.plans)
            if named is not None:
                job = await _guarded(job, chat_request, named, guards)
            completion = None if chat_request.stream else await complete(job)
        headers = adjusted_parameters(job.adjusted)
        if completion is None:
            return EventStream(chunks(job), job.bursts(), streams, raw_headers(headers))
        return JsonResponse(orjson.dumps(completion), headers)

    return router


async def _guarded(
    job: CompletionJob, request: ChatCompletionRequest, named: GuardModel, guards: Guards
) -> CompletionJob:
    """The job with its guard, which has seen the prompt."""
    guard = guards.guard(request, named, job.model)
    await guard.check_prompt(prompt_texts(request))
    return guarded(job, guard)


_ADJUSTED_HEADER = "x-adjusted-parameters"

# its OpenAPI description
ADJUSTED_PARAMETERS: dict[str, Any] = {
    _ADJUSTED_HEADER: {
        "description": "The values of `reasoning_effort` and `verbosity` that the chat template "
        "received instead of the request's, or `ignored`; in other APIs also hosted tools "
        "that were left out. Absent if nothing was changed.",
        "schema": {"type": "string"},
        "example": "reasoning_effort=low, verbosity=ignored",
    }
}


def adjusted_parameters(fields: Mapping[str, str]) -> dict[str, str]:
    """The header; empty if nothing was adjusted."""
    if not fields:
        return {}
    value = ", ".join(f"{name}={value}" for name, value in fields.items())
    return {_ADJUSTED_HEADER: value}
