"""What is answered where no route takes a request, in the envelope of its address."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from openai_frontend.middleware.dialect import is_kserve
from openai_frontend.serving.error_reply import http_error

# By the router's own status
_REFUSALS: Mapping[int, tuple[str, str]] = {
    404: ("Invalid URL ({method} {path})", "unknown_url"),
    405: ("Not allowed to {method} on {path}.", "method_not_supported"),
}
_MAX_PATH = 128  # characters that are shown, and looked at
_MAX_PREFIXES = 4  # segments before an address of ours

# Addresses of other APIs -> the API, and what is served instead
_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "/v1/responses": ("OpenAI's Responses API", "POST /v1/chat/completions"),
    "/v1/messages": ("Anthropic's Messages API", "POST /v1/chat/completions"),
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


async def refuse_route(request: Request, error: Exception) -> Response:
    """Starlette's handler of its own errors; others are not for it."""
    if not isinstance(error, HTTPException):
        raise error
    text, code = error.detail, "invalid_request"
    if error.status_code in _REFUSALS:
        template, code = _REFUSALS[error.status_code]
        # not `request.url`, which is built from the Host header too
        path = request.scope["path"][:_MAX_PATH]
        text = template.format(method=request.method, path=path)
        if error.status_code == 404:
            text += _hint(path, request.app.routes)
    failure = http_error(error.status_code, text, code)
    if is_kserve(request.scope):
        failure = failure.in_kserve_form()
    headers = {**failure.headers, **(error.headers or {})}
    if "Allow" in headers:
        headers["Allow"] = _with_head(headers["Allow"])
    return Response(failure.body, failure.status, headers, media_type="application/json")


def _with_head(allowed: str) -> str:
    """The router does not know of HEAD, which `RequestNormalization` serves by the route of GET."""
    methods = {*allowed.split(", ")}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def _hint(path: str, routes: Sequence[BaseRoute]) -> str:
    """What the client may have meant; empty if nothing is near."""
    for address, (api, instead) in _ELSEWHERE.items():
        if path == address or path.startswith(f"{address}/"):
            return f". {api} is not served: use {instead}."
    known = [route for route in routes if isinstance(route, Route) and route.path != "/"]
    for candidate in _respelled(path):
        if any(route.path_regex.match(candidate) for route in known):
            return f". Did you mean {candidate}?"
    plain = [route.path for route in known if "{" not in route.path]
    close = get_close_matches(path, plain, n=1, cutoff=0.8)
    return f". Did you mean {close[0]}?" if close else ""


def _respelled(path: str) -> Iterator[str]:
    """Other spellings: in small letters, with /v1 before it, without what stands before it."""
    while "//" in path:
        path = path.replace("//", "/")
    for spelling in dict.fromkeys((path, path.lower())):
        yield spelling
        yield f"/v1{spelling}"
        segments = spelling.split("/")
        for start in range(2, min(len(segments), _MAX_PREFIXES + 2)):
            yield "/" + "/".join(segments[start:])
