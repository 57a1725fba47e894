"""GET /: JSON for clients, the playground for browsers. Its files lie in `playground/`."""

import asyncio
import re
from pathlib import Path

import orjson
from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from openai_frontend.routers.routing import PublicRoute

_ABOUT = "openai-frontend: an OpenAI-compatible API gateway with Triton Inference Server inside."
_LINKS = {
    "docs": "/docs",
    "openapi": "/openapi.json",
    "models": "/v1/models",
    "health": "/health",
}
FOLDER = Path(__file__).with_name("playground")
_PAGE = "index.html"
_LINK = re.compile(rb'(?<=")(?=playground/|docs")')  # before each relative link of the page
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = (
    "api.js",
    "audio.js",
    "chat.js",
    "constraints.js",
    "dom.js",
    "icon.svg",
    "inspect.js",
    "metrics.js",
    "models.js",
    "page.css",
    "page.js",
    "status.js",
    "tensors.js",
    "turn.js",
    "vectors.js",
)

_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",  # attached images
        "media-src blob:",  # attached audio
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # The browser refuses to parse any text as markup, also if a script asks for it
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
}


def root_router(root_path: str, *, pages: bool) -> APIRouter:
    """Files are read when a browser asks for them: unused, the page takes no memory."""
    router = APIRouter(route_class=PublicRoute, include_in_schema=False)
    links = {name: root_path + path for name, path in _LINKS.items() if pages or name != "docs"}
    # A proxy may serve the page at the root path without a slash, where relative links would break
    prefix = f"{root_path}/".encode() if root_path else b""
    description = orjson.dumps({"service": "openai-frontend", "description": _ABOUT, **links})

    @router.get("/")
    async def get_root(request: Request) -> Response:
        if not pages or "text/html" not in request.headers.get("accept", ""):
            return Response(description, media_type="application/json")
        page = _LINK.sub(prefix, await _content(_PAGE))
        return Response(page, media_type="text/html", headers=_HEADERS)

    @router.get("/favicon.ico")
    async def get_favicon(request: Request) -> Response:
        return Response(status_code=204)

    if pages:

        @router.get("/playground/{name}")
        async def get_file(request: Request) -> Response:
            name = request.path_params["name"]
            if name not in FILES:
                raise HTTPException(404)
            media_type = _MEDIA_TYPES[Path(name).suffix]
            return Response(await _content(name), media_type=media_type, headers=_HEADERS)

    return router


async def _content(name: str) -> bytes:
    return await asyncio.to_thread((FOLDER / name).read_bytes)
