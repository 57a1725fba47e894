"""/v2/systemsharedmemory: register, unregister and list regions of shared memory."""

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend.kserve.shared_memory import SharedMemory
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.request import read_body
from openai_frontend.routers.routing import AdminRoute
from openai_frontend.serving.request.request_body import BodyReader
from schemas.kserve import RegisterRequest

_ALL = "/v2/systemsharedmemory"
_REGION = _ALL + "/region/{region}"


def shared_memory_router(shared_memory: SharedMemory) -> APIRouter:
    """Changes answer without a body once they are done. The OpenAPI document omits all of them."""
    router = APIRouter(route_class=AdminRoute, include_in_schema=False)
    reader = BodyReader(RegisterRequest)

    @router.get(_ALL + "/status")
    @router.get(_REGION + "/status")
    async def region_status(request: Request) -> Response:
        regions = shared_memory.status(request.path_params.get("region", ""))
        return Response(orjson.dumps(regions), media_type="application/json")

    @router.post(_REGION + "/register")
    async def register_region(request: Request) -> Response:
        shared_memory.check_enabled()
        body = await reader.read(await read_body(request.receive))
        name, owner = request.path_params["region"], current_request().tenant
        shared_memory.register(name, body.key, body.offset, body.byte_size, owner)
        return Response()

    @router.post(_ALL + "/unregister")
    @router.post(_REGION + "/unregister")
    async def unregister_region(request: Request) -> Response:
        shared_memory.unregister(request.path_params.get("region", ""))
        return Response()

    return router
