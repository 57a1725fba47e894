"""Brings the method and the path of a request into the form in which routes are declared."""

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send


class RequestNormalization:
    """Middleware that rewrites the method and path to the form in which routes are declared: strips
    the root path and a trailing slash, and serves HEAD by the routes of GET.

    It runs before host checks, authentication, metrics and the router, so that all see the same.
    """

    def __init__(self, app: ASGIApp, *, root_path: str = "") -> None:
        """`root_path`: prefix under which a reverse proxy serves the API; most proxies strip it."""
        self._app = app
        self._root_path = root_path

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine itself, since most requests pass unchanged."""
        if scope["type"] == "http":
            method, path = scope["method"], normalized_path(scope["path"], self._root_path)
            if method == "HEAD":  # uvicorn keeps its own scope and omits the body
                method = "GET"
            if (method, path) != (scope["method"], scope["path"]):
                scope = {**scope, "method": method, "path": path}
        return self._app(scope, receive, send)


def normalized_path(path: str, root_path: str = "") -> str:
    """Removes one trailing slash. Nothing else is normalized: `//v1/models` is not a route."""
    if root_path and path == root_path:
        return "/"
    if root_path and path.startswith(f"{root_path}/"):
        path = path.removeprefix(root_path)
    return path[:-1] if path.endswith("/") and path != "/" else path
