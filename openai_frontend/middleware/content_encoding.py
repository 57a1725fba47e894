"""Refuses compressed bodies: a small one can unpack to any size."""

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware.refusal import send_failure
from openai_frontend.serving.error_reply import http_error

_REFUSED = http_error(
    415,
    "Unsupported Content-Encoding: send the request body uncompressed.",
    "unsupported_content_encoding",
)


class ContentEncoding:
    """Lets only bodies pass that are what they seem."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _encoded(scope):
            await send_failure(scope, send, _REFUSED)
        else:
            await self._app(scope, receive, send)


def _encoded(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() not in (b"identity", b""):
            return True
    return False
