"""GET /openapi.json and /docs. The page is public, the document is not: the page asks for a key.

It loads nothing from other hosts.
"""

import asyncio
from collections.abc import Callable
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.types import Receive, Scope, Send

from openai_frontend.errors import GatewayError
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.openapi import Document
from openai_frontend.routers.request import authorized_models
from openai_frontend.routers.routing import DocsRoute, PublicRoute
from openai_frontend.serving.admission.authorized_models import ModelProvider

# Relative links, so that the page also works under a proxy's prefix.
_DOCS_PAGE = b"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>openai-frontend</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<form id="key" hidden>
<p>This server requires an API key.</p>
<label>API key <input type="password" autocomplete="off" required></label>
<button>Show the documentation</button>
<p role="alert"></p>
</form>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""

# By default, Swagger UI requests a badge from a public validator. Only the buttons of its top bar,
# which the page does not have, would set its dark colours.
_START = b"""\
const dark = matchMedia("(prefers-color-scheme: dark)");
const paint = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", paint);
paint();

const STORED = "openai-frontend-key";  // in this tab only; the playground uses the same one
const form = document.getElementById("key");
const bearer = () => {
  const key = sessionStorage.getItem(STORED);
  return key ? { Authorization: `Bearer ${key}` } : {};
};

async function start() {
  const { status } = await fetch("openapi.json", { method: "HEAD", headers: bearer() });
  form.hidden = status !== 401 && status !== 403;
  if (!form.hidden) {
    const refused = status === 403 || sessionStorage.getItem(STORED) !== null;
    form.querySelector("[role=alert]").textContent = refused
      ? `The server refused the key (${status}). It needs the scope models.` : "";
    return;
  }
  SwaggerUIBundle({
    url: "openapi.json",
    dom_id: "#swagger-ui",
    validatorUrl: null,
    tryItOutEnabled: true,
    showMutatedRequest: false,  // its curl command would show the key
    displayRequestDuration: true,
    defaultModelsExpandDepth: 0,
    requestInterceptor(request) {
      request.headers = { ...bearer(), ...request.headers };  // the button Authorize wins
      return request;
    },
  });
}

form.addEventListener("submit", event => {
  event.preventDefault();
  const key = form.querySelector("input").value.trim();
  if (/^[\\x21-\\x7e]+$/.test(key)) {
    sessionStorage.setItem(STORED, key);
    start();
  } else {
    form.querySelector("[role=alert]").textContent = "A key has ASCII characters without spaces.";
  }
});
start();
"""

_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # Swagger UI sets styles on its elements
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_PART_BYTES = 64 * 1024
PAGE_HEADERS = {"content-security-policy": _POLICY}


def docs_router(document: Document, registry: ModelRegistry) -> APIRouter:
    router = APIRouter(route_class=DocsRoute, include_in_schema=False)

    @router.get("/openapi.json")
    async def get_openapi(request: Request) -> Response:
        # the first call takes 0.1 s, which would delay streams
        models = _models_by_task(authorized_models(registry))
        described = await asyncio.to_thread(document.with_models, models)
        return Response(orjson.dumps(described), media_type="application/json")

    return router


def docs_page_router() -> APIRouter:
    router = APIRouter(route_class=PublicRoute, include_in_schema=False)

    @router.get("/docs")
    async def get_page(request: Request) -> Response:
        if request.scope.get("raw_path", b"").endswith(b"/"):  # relative links would break
            return RedirectResponse("../docs")
        return Response(_DOCS_PAGE, media_type="text/html", headers=PAGE_HEADERS)

    for path, read, media_type in (
        ("/docs/start.js", lambda: _START, "text/javascript"),
        ("/docs/swagger-ui-bundle.js", _asset("swagger-ui-bundle.js"), "text/javascript"),
        ("/docs/swagger-ui.css", _asset("swagger-ui.css"), "text/css"),
    ):
        router.add_api_route(path, _fixed(read, media_type))
    return router


class SharedFile(Response):
    """A body that every client gets from the same bytes: each part waits until the client has read
    those before it, so a client that does not read costs one part instead of a copy of the body.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        for at in range(0, len(self.body), _PART_BYTES):
            part = self.body[at : at + _PART_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _fixed(read: Callable[[], bytes], media_type: str) -> Callable[[Request], Any]:
    async def get_fixed(request: Request) -> Response:
        content = await asyncio.to_thread(read)
        return SharedFile(content, media_type=media_type, headers=PAGE_HEADERS)

    return get_fixed


def _asset(name: str) -> Callable[[], bytes]:
    """A Swagger UI file from the package fastapi-offline, whose code is not used."""

    @cache
    def read() -> bytes:
        path = distribution("fastapi-offline").locate_file(f"fastapi_offline/static/{name}")
        return Path(str(path)).read_bytes()

    return read


def _models_by_task(models: ModelProvider) -> dict[str, str]:
    """Task or capability -> the first model that is ready for it; empty while models load."""
    by_task: dict[str, str] = {}
    try:
        ready = [card for card in models.cards() if card.ready]
        for card in ready:
            for task in (*models.get(card.name).tasks, *card.capabilities):
                by_task.setdefault(task, card.name)
    except GatewayError:  # still loading, or a model was just unloaded
        return by_task
    return by_task
