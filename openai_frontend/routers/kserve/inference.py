"""POST /v2/models/{model}/infer, /generate and /generate_stream."""

from fastapi import APIRouter, Request, Response

from openai_frontend.contracts.kserve import binary
from openai_frontend.routers.caller import caller_of
from openai_frontend.routers.direct_route import InferenceRoute
from openai_frontend.routers.disconnect import CancelledOnDisconnect
from openai_frontend.routers.kserve.address import MODEL, VERSION, asked_model
from openai_frontend.routers.kserve.errors import ERRORS
from openai_frontend.routers.kserve.event_stream import EventStream
from openai_frontend.routers.kserve.pieces import Pieces
from openai_frontend.routers.openapi import request_body
from openai_frontend.routers.streamed_response import StreamLimits
from openai_frontend.serving.kserve.core import Core
from openai_frontend.serving.kserve.generation import GenerateRequests
from openai_frontend.serving.kserve.inference import InferRequests
from schemas.kserve import GenerateRequest, GenerateResponse, InferRequest, InferResponse

_INFER = {200: {"model": InferResponse}, **ERRORS}
_GENERATE = {200: {"model": GenerateResponse}, **ERRORS}


def inference_router(
    core: Core, infer: InferRequests, generate: GenerateRequests, streams: StreamLimits
) -> APIRouter:
    """A client that goes away ends its request in the core."""
    router = APIRouter(tags=["kserve"], route_class=InferenceRoute)

    @router.post(MODEL + "/infer", openapi_extra=request_body(InferRequest), responses=_INFER)
    @router.post(VERSION + "/infer", include_in_schema=False)
    async def create_inference(request: Request) -> Response:
        """Tensors in, tensors out; as JSON, or as bytes behind it."""
        model, body = asked_model(request, core), await request.body()
        with CancelledOnDisconnect(request.scope):
            answer = await infer.create(
                model,
                body,
                request.headers.get(binary.HEADER),
                _request_id(request),
                key=_key(request),
            )
        if not answer.tail:
            return Response(answer.json, media_type="application/json")
        return Pieces((answer.json, *answer.tail), {binary.HEADER: str(len(answer.json))})

    @router.post(
        MODEL + "/generate", openapi_extra=request_body(GenerateRequest), responses=_GENERATE
    )
    @router.post(VERSION + "/generate", include_in_schema=False)
    async def create_generation(request: Request) -> Response:
        """The model's inputs and outputs as members of an object; one response."""
        model, body = asked_model(request, core), await request.body()
        with CancelledOnDisconnect(request.scope):
            document = await generate.create(model, body, _request_id(request), key=_key(request))
        return Response(document, media_type="application/json")

    @router.post(
        MODEL + "/generate_stream",
        openapi_extra=request_body(GenerateRequest, event=GenerateResponse),
        response_class=Response,
        responses=ERRORS,
    )
    @router.post(VERSION + "/generate_stream", include_in_schema=False)
    async def create_generation_stream(request: Request) -> Response:
        """The same, with an event for each response of the model."""
        model, body = asked_model(request, core), await request.body()
        events = generate.stream(model, body, _request_id(request), key=_key(request))
        return EventStream(events, streams)

    return router


def _key(request: Request) -> str:
    """The digest of who asks."""
    caller = caller_of(request)
    return "" if caller is None else caller.key.digest


def _request_id(request: Request) -> str:
    request_id: str = request.scope["state"]["request_id"]
    return request_id
