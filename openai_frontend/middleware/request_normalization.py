"""Rewrites a request to the form in which routes are declared, before anything decides by it.

Access, host checks, metrics and the router then all see the same method and path.
"""

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send


class RequestNormalization:
    """Drops a slash at the end of the path, and serves HEAD by the route of GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """No coroutine of its own: most requests pass unchanged."""
        if scope["type"] == "http":
            method, path = scope["method"], normalized_path(scope["path"])
            if method == "HEAD":  # uvicorn, which keeps its own scope, leaves the body out
                method = "GET"
            if (method, path) != (scope["method"], scope["path"]):
                scope = {**scope, "method": method, "path": path}
        return self._app(scope, receive, send)


def normalized_path(path: str) -> str:
    """Without one slash at the end. Nothing else is cleaned up: `//v1/models` is no route."""
    return path[:-1] if path.endswith("/") and path != "/" else path
