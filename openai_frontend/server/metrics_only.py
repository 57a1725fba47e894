"""The application as a second port shows it: /metrics and nothing else."""

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware.refusal import send_failure
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.serving.error_reply import http_error

PATH = "/metrics"

_NOT_HERE = http_error(404, "This port serves only /metrics.", "unknown_url")


class MetricsOnly:
    """Keys, ids and counting are those of the application itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._elsewhere = RequestId(_refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].rstrip("/") != PATH:
            await self._elsewhere(scope, receive, send)
        else:
            path = {"path": PATH, "raw_path": PATH.encode()} if scope["type"] == "http" else {}
            await self._app({**scope, **path}, receive, send)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await send_failure(scope, send, _NOT_HERE)
