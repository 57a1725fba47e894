"""Turns exceptions, and requests without a route, into error responses."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.request_context.context import current_request
from openai_frontend.serving.error_reply import (
    ErrorForm,
    ErrorReply,
    http_error,
    log_failure,
    reply_for,
)

# Paths with KServe's prefix that belong to Cohere's API
_NOT_KSERVE = frozenset({"/v2/rerank"})
_MESSAGES, _MODELS = "/v1/messages", "/v1/models"


class ErrorResponses:
    """Answers exceptions with the envelope of the request's API, and logs them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except (Exception, asyncio.CancelledError) as error:
            context = current_request()
            log_failure(error, context.request_id)
            if context.response_started:  # then no other can be sent
                raise
            await send_error(scope, send, reply_for(error))


async def send_error(scope: Scope, send: Send, reply: ErrorReply) -> None:
    """Sends the whole response. Records a rejection for the metrics."""
    if reply.rejection is not None:
        current_request().rejection = reply.rejection
    reply = reply.in_form(error_form(scope), current_request().request_id)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(reply.body)),
        **reply.headers,
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw})
    await send({"type": "http.response.body", "body": reply.body})


def error_form(scope: Scope) -> ErrorForm:
    """The form of errors in the API of the path."""
    path: str = scope["path"]
    if (path.startswith("/v2/") and path not in _NOT_KSERVE) or path == "/v2":
        return "kserve"
    if path == _MESSAGES or path.startswith(f"{_MESSAGES}/") or is_anthropic(scope):
        return "anthropic"
    return "openai"


def is_anthropic(scope: Scope) -> bool:
    """Whether a path that OpenAI's and Anthropic's APIs share is called by the latter's clients."""
    path: str = scope["path"]
    shared = path == _MODELS or path.startswith(f"{_MODELS}/")
    return shared and any(name == b"anthropic-version" for name, _ in scope["headers"])


# ---- requests without a route ----

# By status: message and code
_UNROUTED: Mapping[int, tuple[str, str]] = {
    404: ("Invalid URL ({method} {path})", "unknown_url"),
    405: ("Not allowed to {method} on {path}.", "method_not_supported"),
}
_MAX_PATH = 128  # characters that are quoted and searched
_MAX_PREFIXES = 4  # segments before one of our paths

# Paths of other APIs -> the API, and the route to use instead
_OTHER_APIS: Mapping[str, tuple[str, str]] = {
    "/api/chat": ("Ollama's API", "POST /v1/chat/completions"),
    "/api/generate": ("Ollama's API", "POST /v1/completions"),
    "/api/embed": ("Ollama's API", "POST /v1/embeddings"),
    "/api/embeddings": ("Ollama's API", "POST /v1/embeddings"),
    "/api/tags": ("Ollama's API", "GET /v1/models"),
    "/api/show": ("Ollama's API", "GET /v1/models/{id}"),
    "/completion": ("llama.cpp's API", "POST /v1/completions"),
    "/embedding": ("llama.cpp's API", "POST /v1/embeddings"),
    "/generate": ("text-generation-inference's API", "POST /v1/completions"),
    "/generate_stream": ("text-generation-inference's API", "POST /v1/completions"),
    "/embed": ("text-embeddings-inference's API", "POST /v1/embeddings"),
}


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """FastAPI's handler for the router's own errors: 404 and 405."""
    if not isinstance(error, HTTPException):
        raise error
    text, code = error.detail, "invalid_request"
    if error.status_code in _UNROUTED:
        template, code = _UNROUTED[error.status_code]
        # not `request.url`, which is built from the Host header too
        path = request.scope["path"][:_MAX_PATH]
        text = template.format(method=request.method, path=path)
        if error.status_code == 404:
            text += _hint(path, request.app.state.routes)
    reply = http_error(error.status_code, text, code)
    reply = reply.in_form(error_form(request.scope), current_request().request_id)
    headers = {**reply.headers, **(error.headers or {})}
    if "Allow" in headers:
        headers["Allow"] = _with_head(headers["Allow"])
    return Response(reply.body, reply.status, headers, media_type="application/json")


def _with_head(allowed: str) -> str:
    """Adds HEAD, which `RequestNormalization` sends to the routes of GET."""
    methods = {*allowed.split(", ")}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def _hint(path: str, routes: Sequence[Route]) -> str:
    """A hint at the path that the client may have meant; empty if no path is similar."""
    for other, (api, instead) in _OTHER_APIS.items():
        if path == other or path.startswith(f"{other}/"):
            return f". {api} is not served: use {instead}."
    known = [route for route in routes if route.path != "/"]
    for candidate in _respelled(path):
        if any(route.path_regex.match(candidate) for route in known):
            return f". Did you mean {candidate}?"
    plain = [route.path for route in known if "{" not in route.path]
    close = get_close_matches(path, plain, n=1, cutoff=0.8)
    return f". Did you mean {close[0]}?" if close else ""


def _respelled(path: str) -> Iterator[str]:
    """Variants of the path: lower case, with /v1 in front, without leading segments."""
    while "//" in path:
        path = path.replace("//", "/")
    for spelling in dict.fromkeys((path, path.lower())):
        yield spelling
        yield f"/v1{spelling}"
        segments = spelling.split("/")
        for start in range(2, min(len(segments), _MAX_PREFIXES + 2)):
            yield "/" + "/".join(segments[start:])
