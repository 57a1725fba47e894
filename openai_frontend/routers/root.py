"""GET /: what this server is. JSON for clients, a page without scripts for browsers."""

from collections.abc import Iterable, Sequence
from html import escape

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend.errors import ModelUnavailable
from openai_frontend.models.model_card import ModelCard
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.request import authorized_models, may_list_models
from openai_frontend.routers.routing import PublicRoute
from openai_frontend.runtime.html_page import HEADERS, page
from openai_frontend.serving.admission.authorized_models import ModelProvider
from schemas.models import Capabilities

_ABOUT = "openai-frontend: an OpenAI-compatible API gateway with Triton Inference Server inside."
_LINKS = {
    "docs": "/docs",
    "openapi": "/openapi.json",
    "models": "/v1/models",
    "health": "/health",
}


def root_router(root_path: str, registry: ModelRegistry, *, keys: bool) -> APIRouter:
    """Without a key, a server that has keys shows no models."""
    router = APIRouter(route_class=PublicRoute, include_in_schema=False)
    links = {name: root_path + path for name, path in _LINKS.items()}
    description = orjson.dumps({"service": "openai-frontend", "description": _ABOUT, **links})

    @router.get("/")
    async def get_root(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            return Response(description, media_type="application/json")
        known = current_request().principal is not None if keys else True
        if not known or not may_list_models():
            content = _KEY_NEEDED
        else:
            content = _models(authorized_models(registry))
        return Response(page("openai-frontend", _body(root_path, content)), headers=HEADERS)

    @router.get("/favicon.ico")
    async def get_favicon(request: Request) -> Response:
        return Response(status_code=204)

    return router


_KEY_NEEDED = "<p>The models are shown with an API key: <code>GET /v1/models</code>.</p>\n"
_LOADING = "<p>The models are still loading.</p>\n"


def _body(root_path: str, content: str) -> str:
    # A relative link also works under an unknown proxy prefix
    links = "".join(
        f'<a href="{escape(root_path + path if root_path else path[1:])}">{name}</a>\n'
        for name, path in _LINKS.items()
    )
    return f"<p>{_ABOUT} The API is under <code>/v1</code>.</p>\n{content}<nav>\n{links}</nav>\n"


def _models(models: ModelProvider) -> str:
    try:
        return _table(models.cards())
    except ModelUnavailable:
        return _LOADING


def _table(cards: Sequence[ModelCard]) -> str:
    if not cards:
        return "<p>No model serves OpenAI's API.</p>\n"
    rows = (
        _row((f"<code>{escape(card.name)}</code>", _state(card), ", ".join(_abilities(card))))
        for card in cards
    )
    heads = "".join(f"<th>{head}</th>" for head in ("model", "state", "requests"))
    return f"<table>\n<tr>{heads}</tr>\n{''.join(rows)}</table>\n"


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"


def _state(card: ModelCard) -> str:
    if card.loads_on_demand:
        return "loads on the first request"
    return "ready" if card.ready else "not ready"


def _abilities(card: ModelCard) -> list[str]:
    return [name for name in Capabilities.model_fields if name in card.capabilities]
