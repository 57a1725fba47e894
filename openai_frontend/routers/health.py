"""GET /health/live and /health/ready."""

from collections.abc import Callable, Mapping

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend.routers.direct_route import DirectRoute


def health_router(
    is_ready: Callable[[], bool], unready_models: Callable[[], Mapping[str, str]]
) -> APIRouter:
    """`unready_models` tells why, for each model that cannot serve."""
    router = APIRouter(tags=["health"], route_class=DirectRoute)

    @router.get("/health/live")
    async def live(request: Request) -> Response:
        """200 as long as the process answers at all."""
        return _status(200, "live", {})

    @router.get("/health/ready", responses={503: {"description": "Some model cannot serve."}})
    async def ready(request: Request) -> Response:
        """200 once every model can serve; else 503 with the reasons."""
        if is_ready():
            return _status(200, "ready", {})
        return _status(503, "not ready", unready_models())

    return router


def _status(status: int, word: str, models: Mapping[str, str]) -> Response:
    body = orjson.dumps({"status": word, "models": models})
    return Response(body, status, media_type="application/json")
