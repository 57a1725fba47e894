"""POST /v1/completions."""

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.openapi import ERRORS, request_body
from openai_frontend.routers.request import CancelOnDisconnect, read_body, resolve_model
from openai_frontend.routers.routing import InferenceRoute, JsonResponse
from openai_frontend.routers.streaming import EventStream, StreamLimits
from openai_frontend.serving.dialects.completions import Completions, chunks, complete
from openai_frontend.serving.request.request_body import FindMember, RepeatedBodyReader
from schemas.completions import Completion, CompletionRequest


def completions_router(
    registry: ModelRegistry,
    completions: Completions,
    streams: StreamLimits,
    find_member: FindMember,
) -> APIRouter:
    """The route of completions."""
    router = APIRouter(tags=["Completions"], route_class=InferenceRoute)
    reader = RepeatedBodyReader(CompletionRequest, "prompt", find_member)

    @router.post(
        "/v1/completions",
        openapi_extra=request_body(CompletionRequest, chunk=Completion),
        responses={200: {"model": Completion}, **ERRORS},
    )
    async def create_completion(request: Request) -> Response:
        """Continues a text, complete or as a stream of chunks."""
        completion_request, known = await reader.read_known(await read_body(request.receive))
        model = await resolve_model(
            registry, completion_request.model, "completions", priority=completion_request.priority
        )
        with CancelOnDisconnect():  # tokenizing a long prompt may take seconds
            job = await completions.prepare(completion_request, model, known.plans)
            completion = None if completion_request.stream else await complete(job)
        if completion is None:
            return EventStream(chunks(job), job.bursts(), streams)
        return JsonResponse(orjson.dumps(completion))

    return router
