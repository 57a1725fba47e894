"""POST /v1/responses and /v1/responses/input_tokens."""

from fastapi import APIRouter, Request, Response

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.chat import ADJUSTED_PARAMETERS, adjusted_parameters
from openai_frontend.routers.openapi import ERRORS, request_body
from openai_frontend.routers.request import (
    CancelOnDisconnect,
    read_body,
    resolve_loaded,
    resolve_model,
)
from openai_frontend.routers.routing import ResponsesRoute, raw_headers
from openai_frontend.routers.streaming import EventStream, StreamLimits
from openai_frontend.serving.dialects.responses.reader import Responses
from openai_frontend.serving.dialects.responses.writer import complete, events
from openai_frontend.serving.request.request_body import (
    BodyReader,
    FindMember,
    RepeatedBodyReader,
)
from schemas.responses import (
    InputTokens,
    InputTokensRequest,
    ResponseEvent,
    ResponseObject,
    ResponsesRequest,
)


def responses_router(
    registry: ModelRegistry,
    responses: Responses,
    streams: StreamLimits,
    find_member: FindMember,
) -> APIRouter:
    """Stateless: nothing is stored."""
    router = APIRouter(tags=["Responses"], route_class=ResponsesRoute)
    reader = RepeatedBodyReader(ResponsesRequest, "input", find_member)
    counted = BodyReader(InputTokensRequest)

    @router.post(
        "/v1/responses",
        openapi_extra=request_body(ResponsesRequest, chunk=ResponseEvent),
        responses={200: {"model": ResponseObject, "headers": ADJUSTED_PARAMETERS}, **ERRORS},
    )
    async def create_response(request: Request) -> Response:
        """Answers items with items, complete or as a stream of events."""
        asked, known = await reader.read_known(await read_body(request.receive))
        model = await resolve_model(registry, asked.model, "chat")
        with CancelOnDisconnect():  # fetching media may take seconds
            response = await responses.prepare(asked, model, known.plans)
            body = None if asked.stream else await complete(response)
        job = response.job
        headers = adjusted_parameters(job.adjusted)
        if body is None:
            return EventStream(events(response), job.bursts(), streams, raw_headers(headers))
        return Response(body, headers=headers, media_type="application/json")

    @router.post(
        "/v1/responses/input_tokens",
        openapi_extra=request_body(InputTokensRequest),
        responses={200: {"model": InputTokens}, **ERRORS},
    )
    async def count_input_tokens(request: Request) -> Response:
        """Counts the tokens of a request's prompt, without an answer."""
        asked = await counted.read(await read_body(request.receive))
        model = await resolve_loaded(registry, asked.model, "chat")
        with CancelOnDisconnect():
            tokens = InputTokens(input_tokens=await responses.count(asked, model))
        return Response(tokens.model_dump_json(), media_type="application/json")

    return router
