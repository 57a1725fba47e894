"""Refuses bodies that are no JSON by their own word: no endpoint reads another type.

A web page may send forms and plain text to any address without asking it first, JSON it may not: so
a page that a user visits cannot use a gateway that only this user can reach.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware.refusal import send_failure
from openai_frontend.serving.failure import refused

READ_TYPES = frozenset({b"application/json"})

_REFUSED = refused(
    415,
    "Unsupported Content-Type: send the request body as 'application/json'.",
    "unsupported_content_type",
)


class ContentType:
    """Lets JSON pass, and bodies that say nothing of their type."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and not _is_read(scope):
            await send_failure(send, _REFUSED)
        else:
            await self._app(scope, receive, send)


def _is_read(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"content-type":
            return value.partition(b";")[0].strip().lower() in READ_TYPES
    return True
