"""Answers requests on connections beyond the limit with 503. Health checks still pass."""

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.errors import ServerOverloaded
from openai_frontend.middleware.error_responses import send_error
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.middleware.request_normalization import normalized_path
from openai_frontend.middleware.trusted_hosts import HEALTH_PATHS
from openai_frontend.serving.error_reply import reply_for


class ConnectionLimit:
    """ASGI app that replaces the gateway for connections beyond `max_connections`."""

    def __init__(self, app: ASGIApp, max_connections: int, root_path: str = "") -> None:
        self._app = app
        self._root_path = root_path
        self._message = (
            f"The server reached its limit of {max_connections} connections. Retry later."
        )
        self._reject = RequestId(self._send_rejection)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A liveness probe must not restart a server because it is busy.
        is_health_check = normalized_path(scope["path"], self._root_path) in HEALTH_PATHS
        await (self._app if is_health_check else self._reject)(scope, receive, send)

    async def _send_rejection(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = reply_for(ServerOverloaded(self._message))
        reply.headers["connection"] = "close"
        await send_error(scope, send, reply)
