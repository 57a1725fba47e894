"""GET / says what this server is; GET /favicon.ico spares browsers an error."""

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend.routers.direct_route import PublicRoute
from openai_frontend.routers.documentation import PAGE_HEADERS

_ABOUT = "openai-frontend: an OpenAI-compatible API gateway with Triton Inference Server inside."

_PAGE = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>openai-frontend</title></head>
<body>
<p>{about}</p>
<p>The API is under <code>/v1</code>. <a href="{docs}">Documentation</a></p>
</body>
</html>
"""
_LINKS = {
    "docs": "/docs",
    "openapi": "/openapi.json",
    "models": "/v1/models",
    "health": "/health",
}


def root_router(root_path: str) -> APIRouter:
    """No version, no model: whoever reaches the port may read it."""
    router = APIRouter(route_class=PublicRoute, include_in_schema=False)
    # A relative link is right below a proxy's path that nobody told us of
    page = _PAGE.format(about=_ABOUT, docs=f"{root_path}/docs" if root_path else "docs")
    links = {name: root_path + path for name, path in _LINKS.items()}
    description = orjson.dumps({"service": "openai-frontend", "description": _ABOUT, **links})

    @router.get("/")
    async def get_root(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return Response(page, media_type="text/html", headers=PAGE_HEADERS)
        return Response(description, media_type="application/json")

    @router.get("/favicon.ico")
    async def get_favicon(request: Request) -> Response:
        return Response(status_code=204)

    return router
