"""What is answered where no route takes a request, in the envelope of its address."""

from collections.abc import Mapping

from fastapi import Request, Response
from starlette.exceptions import HTTPException

from openai_frontend.middleware.dialect import is_kserve
from openai_frontend.serving.failure import refused

# By the router's own status
_REFUSALS: Mapping[int, tuple[str, str]] = {
    404: ("Invalid URL ({method} {path})", "unknown_url"),
    405: ("Not allowed to {method} on {path}.", "method_not_supported"),
}


async def refuse_route(request: Request, error: Exception) -> Response:
    """Starlette's handler of its own errors; others are not for it."""
    if not isinstance(error, HTTPException):
        raise error
    text, code = error.detail, "invalid_request"
    if error.status_code in _REFUSALS:
        template, code = _REFUSALS[error.status_code]
        # not `request.url`, which is built from the Host header too
        text = template.format(method=request.method, path=request.scope["path"][:128])
    failure = refused(error.status_code, text, code)
    if is_kserve(request.scope):
        failure = failure.in_kserve_form()
    headers = {**failure.headers, **(error.headers or {})}
    return Response(failure.body, failure.status, headers, media_type="application/json")
