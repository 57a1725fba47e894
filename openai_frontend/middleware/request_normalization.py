"""Rewrites a request to the form in which routes are declared, before anything decides by it.

Authentication, host checks, metrics and the router then all see the same method and path.
"""

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send


class RequestNormalization:
    """Drops the root path, and a slash at the end of the path; serves HEAD by the route of GET."""

    def __init__(self, app: ASGIApp, *, root_path: str = "") -> None:
        """`root_path`: where a reverse proxy serves the API; most proxies drop it themselves."""
        self._app = app
        self._root_path = root_path

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """No coroutine of its own: most requests pass unchanged."""
        if scope["type"] == "http":
            method, path = scope["method"], normalized_path(scope["path"], self._root_path)
            if method == "HEAD":  # uvicorn, which keeps its own scope, leaves the body out
                method = "GET"
            if (method, path) != (scope["method"], scope["path"]):
                scope = {**scope, "method": method, "path": path}
        return self._app(scope, receive, send)


def normalized_path(path: str, root_path: str = "") -> str:
    """Without one slash at the end. Nothing else is cleaned up: `//v1/models` is no route."""
    if root_path and path == root_path:
        return "/"
    if root_path and path.startswith(f"{root_path}/"):
        path = path.removeprefix(root_path)
    return path[:-1] if path.endswith("/") and path != "/" else path
