"""GET /v2, /v2/health/live and /v2/health/ready."""

from collections.abc import Callable

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend.routers.direct_route import HealthRoute, ModelsRoute
from openai_frontend.routers.kserve.errors import ERRORS
from openai_frontend.serving.kserve.core import Core
from schemas.kserve import ServerMetadata

# Of the core's extensions, those that its HTTP frontend makes and this one does not
_LACKING = frozenset(
    {
        "cuda_shared_memory",
        "sequence",
        "sequence(string_id)",
        "system_shared_memory",
        "trace",
    }
)


def health_router(core: Core, is_ready: Callable[[], bool]) -> APIRouter:
    """An answer without a body: 200 for yes, 400 for no, as Triton's."""
    router = APIRouter(tags=["kserve"], route_class=HealthRoute)

    @router.get("/v2/health/live", response_class=Response, responses=ERRORS)
    async def live(request: Request) -> Response:
        """200 while the core runs."""
        return Response(status_code=200 if core.is_live() else 400)

    @router.get("/v2/health/ready", response_class=Response, responses=ERRORS)
    async def ready(request: Request) -> Response:
        """200 once every model can serve."""
        return Response(status_code=200 if is_ready() else 400)

    return router


def server_router(core: Core) -> APIRouter:
    """What the server is."""
    router = APIRouter(tags=["kserve"], route_class=ModelsRoute)

    @router.get("/v2", responses={200: {"model": ServerMetadata}, **ERRORS})
    async def server_metadata(request: Request) -> Response:
        """The core's name and version, and the extensions of the protocol that are here."""
        metadata = core.metadata()
        extensions = [each for each in metadata["extensions"] if each not in _LACKING]
        return json({**metadata, "extensions": [*extensions, "generate"]})

    return router


def json(document: object) -> Response:
    """A document as an answer."""
    return Response(orjson.dumps(document), media_type="application/json")
