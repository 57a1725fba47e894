"""POST /v2/models/{model}/infer, /generate and /generate_stream; the models in paths."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from openai_frontend.kserve.compression import Encoding, accepted_encoding, compressed
from openai_frontend.kserve.generate import GenerateService
from openai_frontend.kserve.infer import JSON_LENGTH_HEADER, InferResult, InferService
from openai_frontend.kserve.models import (
    ModelAddress,
    check_visible,
    inference_model,
    model_address,
)
from openai_frontend.kserve.services import KServeServices
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.openapi import request_body
from openai_frontend.routers.request import CancelOnDisconnect, read_body
from openai_frontend.routers.routing import InferenceRoute
from openai_frontend.routers.streaming import StreamedResponse, StreamLimits
from openai_frontend.serving.error_reply import ErrorReply
from openai_frontend.sse import error_event
from openai_frontend.text_relay import StreamWriter
from schemas.kserve import (
    GenerateRequest,
    GenerateResponse,
    InferRequest,
    InferResponse,
    KServeError,
)

MODEL = "/v2/models/{model}"
VERSION = MODEL + "/versions/{version}"

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": KServeError, "description": "The request is invalid or not allowed."},
    "5XX": {"model": KServeError, "description": "The server or the model failed."},
}

_JSON, _BINARY = "application/json", "application/octet-stream"
_INFER = {200: {"model": InferResponse}, **ERRORS}
_GENERATE = {200: {"model": GenerateResponse}, **ERRORS}


def visible_model(request: Request) -> ModelAddress:
    """The model to describe. Raises if the name is invalid or the key does not allow it."""
    return check_visible(current_request().principal, model_address(*_path_parameters(request)))


def model_for_inference(request: Request, services: KServeServices) -> ModelAddress:
    """The model to run; recorded for the metrics if it is ready. It gets headers of the request."""
    context = current_request()
    context.forwarded_headers = services.forwarded_headers.select(request.scope["headers"])
    return inference_model(context, services.core, *_path_parameters(request))


def _path_parameters(request: Request) -> tuple[str, str | None]:
    return request.path_params["model"], request.path_params.get("version")


def inference_router(
    services: KServeServices,
    infer: InferService,
    generate: GenerateService,
    streams: StreamLimits,
) -> APIRouter:
    """Disconnecting cancels a request in the core."""
    router = APIRouter(tags=["KServe"], route_class=InferenceRoute)

    @router.post(MODEL + "/infer", openapi_extra=request_body(InferRequest), responses=_INFER)
    @router.post(VERSION + "/infer", include_in_schema=False)
    async def create_inference(request: Request) -> Response:
        """Runs a model on tensors, sent as JSON or as bytes behind it."""
        model, body = model_for_inference(request, services), await read_body(request.receive)
        json_length = request.headers.get(JSON_LENGTH_HEADER)
        with CancelOnDisconnect():
            response = await infer.create(model, body, json_length, current_request())
        if (encoding := accepted_encoding(request.headers.get("accept-encoding"))) is not None:
            short = await compressed((response.json, *response.tail), encoding)
            if short is not None:
                return _compressed_response(response, short, encoding)
        if not response.tail:
            return Response(response.json, media_type=_JSON)
        return MultiBufferResponse((response.json, *response.tail), _json_length(response))

    @router.post(
        MODEL + "/generate", openapi_extra=request_body(GenerateRequest), responses=_GENERATE
    )
    @router.post(VERSION + "/generate", include_in_schema=False)
    async def create_generation(request: Request) -> Response:
        """Runs a model whose inputs and outputs are members of an object; one response."""
        model, body = model_for_inference(request, services), await read_body(request.receive)
        with CancelOnDisconnect():
            document = await generate.create(model, body, current_request())
        return Response(document, media_type="application/json")

    @router.post(
        MODEL + "/generate_stream",
        openapi_extra=request_body(GenerateRequest, event=GenerateResponse),
        response_class=Response,
        responses=ERRORS,
    )
    @router.post(VERSION + "/generate_stream", include_in_schema=False)
    async def create_generation_stream(request: Request) -> Response:
        """Like generate, with an event for each response of the model."""
        model, body = model_for_inference(request, services), await read_body(request.receive)
        return GenerateStream(generate.stream(model, body, current_request()), streams)

    return router


def _json_length(response: InferResult) -> dict[str, str]:
    return {JSON_LENGTH_HEADER: str(len(response.json))} if response.tail else {}


def _compressed_response(response: InferResult, body: bytes, encoding: Encoding) -> Response:
    """The length of the JSON is that of the decompressed body, as in Triton's responses."""
    headers = {"content-encoding": encoding, "vary": "accept-encoding", **_json_length(response)}
    return Response(body, headers=headers, media_type=_BINARY if response.tail else _JSON)


class GenerateStream(StreamedResponse):
    """The events of generate_stream."""

    comments = False  # Triton's own clients parse every line as an event

    def __init__(self, events: AsyncGenerator[bytes, None], limits: StreamLimits) -> None:
        super().__init__(limits)
        self._events = events

    async def pump(self, writer: StreamWriter) -> bytes:
        """Writes the events of each burst. The stream has no closing event."""
        async with aclosing(self._events) as events:
            async for burst in events:
                self.start()
                writer(burst)
        self.start()  # if the model sent no response
        await self.drained()
        return b""

    def failure_data(self, failure: ErrorReply) -> bytes:
        return error_event(failure.in_form("kserve", "").body)


class MultiBufferResponse(Response):
    """A body in several buffers, each written by itself to avoid a copy."""

    media_type = _BINARY

    def __init__(self, pieces: Sequence[bytes | memoryview], headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._pieces = [memoryview(piece).cast("B") for piece in pieces]
        length = sum(piece.nbytes for piece in self._pieces)
        self.init_headers({**headers, "content-length": str(length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
