"""POST /v1/chat/completions."""

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.adjusted import ADJUSTED_PARAMETERS, adjusted_parameters
from openai_frontend.routers.body import read_body
from openai_frontend.routers.caller import model_for
from openai_frontend.routers.direct_route import InferenceRoute
from openai_frontend.routers.disconnect import CancelledOnDisconnect
from openai_frontend.routers.event_stream import EventStream
from openai_frontend.routers.openapi import ERRORS, request_body
from openai_frontend.routers.streamed_response import StreamLimits
from openai_frontend.serving.chat import ChatCompletions, chunks, complete
from openai_frontend.serving.request.request_body import BodyReader
from schemas.chat_completions import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
)


def chat_router(registry: ModelRegistry, chat: ChatCompletions, streams: StreamLimits) -> APIRouter:
    """The route reads its body itself: FastAPI's reading would cost more than the rest of it."""
    router = APIRouter(tags=["chat"], route_class=InferenceRoute)
    reader = BodyReader(ChatCompletionRequest)

    @router.post(
        "/v1/chat/completions",
        openapi_extra=request_body(ChatCompletionRequest, chunk=ChatCompletionChunk),
        responses={200: {"model": ChatCompletion, "headers": ADJUSTED_PARAMETERS}, **ERRORS},
    )
    async def create_chat_completion(request: Request) -> Response:
        """Answers a conversation, whole or as a stream of chunks."""
        chat_request = await reader.read_in_turns(await read_body(request.receive))
        model = await model_for(request, registry, chat_request.model, "chat")
        answer = await chat.prepare(chat_request, model)
        told = adjusted_parameters(answer.adjusted)
        if chat_request.stream:
            headers = [(name.encode(), value.encode()) for name, value in told.items()]
            return EventStream(chunks(answer), answer.bursts(), streams, headers)
        with CancelledOnDisconnect(request.scope):
            completion = await complete(answer)
        return Response(orjson.dumps(completion), headers=told, media_type="application/json")

    return router
