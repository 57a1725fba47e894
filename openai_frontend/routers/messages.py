"""POST /v1/messages and /v1/messages/count_tokens of Anthropic's API."""

from typing import Any

from fastapi import APIRouter, Request, Response

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.chat import ADJUSTED_PARAMETERS, adjusted_parameters
from openai_frontend.routers.openapi import ANTHROPIC_ERRORS, request_body
from openai_frontend.routers.request import (
    CancelOnDisconnect,
    read_body,
    resolve_loaded,
    resolve_model,
)
from openai_frontend.routers.routing import MessagesRoute, raw_headers
from openai_frontend.routers.streaming import EventStream, StreamLimits
from openai_frontend.serving.dialects.messages.reader import Messages
from openai_frontend.serving.dialects.messages.writer import complete, events
from openai_frontend.serving.request.request_body import (
    BodyReader,
    FindMember,
    RepeatedBodyReader,
)
from schemas.messages import (
    CountTokensRequest,
    Message,
    MessagesRequest,
    MessageStreamEvent,
    MessageTokensCount,
)

_HEADERS: dict[str, Any] = {
    **ADJUSTED_PARAMETERS,
    "request-id": {
        "description": "The same as `x-request-id`, under Anthropic's name.",
        "schema": {"type": "string"},
    },
}


def request_id_header() -> dict[str, str]:
    """The id of the request under the name that clients of this API read."""
    return {"request-id": current_request().request_id}


def messages_router(
    registry: ModelRegistry, messages: Messages, streams: StreamLimits, find_member: FindMember
) -> APIRouter:
    """Reads the body itself, as the routes of chats do."""
    router = APIRouter(tags=["Messages"], route_class=MessagesRoute)
    reader = RepeatedBodyReader(MessagesRequest, "messages", find_member)
    counted = BodyReader(CountTokensRequest)

    @router.post(
        "/v1/messages",
        openapi_extra=request_body(MessagesRequest, named_event=MessageStreamEvent),
        responses={200: {"model": Message, "headers": _HEADERS}, **ANTHROPIC_ERRORS},
    )
    async def create_message(request: Request) -> Response:
        """Answers a conversation, complete or as a stream of events."""
        asked, known = await reader.read_known(await read_body(request.receive))
        model = await resolve_model(registry, asked.model, "chat")
        with CancelOnDisconnect():  # fetching media may take seconds
            message = await messages.prepare(asked, model, known.plans)
            body = None if asked.stream else await complete(message)
        job = message.job
        headers = {**request_id_header(), **adjusted_parameters(job.adjusted)}
        if body is None:
            return EventStream(
                events(message), job.bursts(), streams, raw_headers(headers), opens_late=True
            )
        return Response(body, headers=headers, media_type="application/json")

    @router.post(
        "/v1/messages/count_tokens",
        openapi_extra=request_body(CountTokensRequest),
        responses={200: {"model": MessageTokensCount, "headers": _HEADERS}, **ANTHROPIC_ERRORS},
    )
    async def count_message_tokens(request: Request) -> Response:
        """Counts the tokens of a request's prompt, without an answer."""
        asked = await counted.read(await read_body(request.receive))
        model = await resolve_loaded(registry, asked.model, "chat")
        with CancelOnDisconnect():
            count = MessageTokensCount(input_tokens=await messages.count(asked, model))
        body = count.model_dump_json()
        return Response(body, headers=request_id_header(), media_type="application/json")

    return router
