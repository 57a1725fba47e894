"""What requests are told on a connection that is one too many. Lets supervisors through."""

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.errors import ServerOverloaded
from openai_frontend.middleware.refusal import send_failure
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.middleware.request_normalization import normalized_path
from openai_frontend.middleware.trusted_hosts import HEALTH_PATHS
from openai_frontend.serving.error_reply import reply_for


class ConnectionLimit:
    """In place of the application, on such a connection alone."""

    def __init__(self, app: ASGIApp, max_connections: int, root_path: str = "") -> None:
        self._app = app
        self._root_path = root_path
        self._told = f"The server reached its limit of {max_connections} connections. Retry later."
        self._refuse = RequestId(self._send_refusal)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whoever asks whether the server lives must not kill it for being busy."""
        is_health_check = normalized_path(scope["path"], self._root_path) in HEALTH_PATHS
        await (self._app if is_health_check else self._refuse)(scope, receive, send)

    async def _send_refusal(self, scope: Scope, receive: Receive, send: Send) -> None:
        failure = reply_for(ServerOverloaded(self._told))
        failure.headers["connection"] = "close"
        await send_failure(scope, send, failure)
