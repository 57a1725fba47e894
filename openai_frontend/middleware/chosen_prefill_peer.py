"""The header with which a router chooses the prefill server of a request."""

from collections.abc import Awaitable, Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.errors import InvalidRequest
from openai_frontend.request_context.context import current_request

HEADER = b"x-prefiller-host-port"  # llm-d's


class ChosenPrefillPeer:
    """Middleware of a decode server: a router may choose among its prefill servers."""

    def __init__(self, app: ASGIApp, *, addresses: Collection[str]) -> None:
        """`addresses`: HOST:PORT of each prefill server."""
        self._app = app
        self._addresses = {address.encode() for address in addresses}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine itself, since most requests name none."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        named = [value for name, value in scope["headers"] if name == HEADER]
        if not named:
            return self._app(scope, receive, send)
        if len(named) > 1 or named[0] not in self._addresses:
            raise _refusal(named[0])
        current_request().prefill_peer = named[0].decode()
        return self._app(scope, receive, send)


def _refusal(address: bytes) -> InvalidRequest:
    name, shown = HEADER.decode(), address[:64].decode("latin-1")
    message = f"The header {name} names '{shown}', which is not in prefill_peers of this server."
    return InvalidRequest(message, param=name)
