"""What Triton's HTTP frontend has below /v2 and this server has not: each says so."""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from openai_frontend.errors import NotSupported
from openai_frontend.routers.direct_route import AdminRoute
from openai_frontend.routers.kserve.address import MODEL
from openai_frontend.routers.kserve.server import json

_SHARED_MEMORY = "This server takes no tensors in shared memory: send them in the request's body."
_TRACE = "This server makes no traces of the core's."
_LOGGING = "The core's log is set at the start: --triton-log-info and the settings beside it."
_REPOSITORY = "Repositories have no names here: leave the name out of the address."

_LACKING = {
    "/v2/systemsharedmemory/{rest:path}": _SHARED_MEMORY,
    "/v2/cudasharedmemory/{rest:path}": _SHARED_MEMORY,
    "/v2/trace/setting": _TRACE,
    MODEL + "/trace/setting": _TRACE,
    "/v2/repository/{repository}/index": _REPOSITORY,
    "/v2/repository/{repository}/models/{model}/{action}": _REPOSITORY,
}


def lacking_router() -> APIRouter:
    """None of it stands in the API's description."""
    router = APIRouter(route_class=AdminRoute, include_in_schema=False)
    for path, message in _LACKING.items():
        router.add_api_route(path, _refusing(message), methods=["GET", "POST"])
    return router


def logging_router(log_settings: Mapping[str, Any]) -> APIRouter:
    """The core's log, as it was set at the start."""
    router = APIRouter(route_class=AdminRoute, include_in_schema=False)
    router.add_api_route("/v2/logging", _refusing(_LOGGING), methods=["POST"])

    @router.get("/v2/logging")
    async def get_logging(request: Request) -> Response:
        return json(log_settings)

    return router


def _refusing(message: str) -> Callable[[Request], Any]:
    async def refuse(request: Request) -> Response:
        raise NotSupported(message)

    return refuse
