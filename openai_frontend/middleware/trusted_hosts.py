"""Refuses requests that call the server by a name that is not its own.

A page of another site can reach a gateway on its user's machine by having its own name resolve to
that address; the Host header still tells the page's name.
"""

import ipaddress
import re
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware.refusal import send_failure
from openai_frontend.serving.error_reply import ErrorReply, http_error

HEALTH_PATHS = frozenset(
    {
        "/health", "/health/live", "/health/ready", "/healthz", "/ping",
        "/v2/health/live", "/v2/health/ready",
    }
)  # fmt: skip

# What programs of the same machine call it, containers' too, where nobody has named it. No address
# on the internet can have one of these names, nor can a page's address become another one's.
LOCAL = ("localhost", "*.localhost", "host.docker.internal", "host.containers.internal")

# The whole header: a name or an address, and a port. What else may stand there by a standard of
# addresses (`a@b`, `a/x?`, `a#`) is read by each program in its own way.
_HOST = re.compile(rb"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")

_MISSING = http_error(400, "The Host header is missing.", "invalid_host")
_MALFORMED = http_error(
    400, "The Host header must be one host name or address, with or without port.", "invalid_host"
)
_NOT_ALLOWED = http_error(
    400,
    "The server does not accept the host name in the Host header. To accept it, start the server "
    "with --allowed-hosts NAME.",
    "invalid_host",
)


class TrustedHosts:
    """Supervisors, which call by an address, get through to what tells of health."""

    def __init__(self, app: ASGIApp, *, allowed: Sequence[str], addresses: bool = False) -> None:
        """`allowed`: names, and `*.example.com` for all below example.com. `addresses`: whatever is
        no name is allowed too.
        """
        self._app = app
        self._addresses = addresses
        self._names = {name.encode() for name in allowed if not name.startswith("*.")}
        self._endings = tuple(name[1:].encode() for name in allowed if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await send_failure(scope, send, refusal)

    def _refusal(self, scope: Scope) -> ErrorReply | None:
        if scope["path"] in HEALTH_PATHS:
            return None
        given = [value for name, value in scope["headers"] if name == b"host"]
        if not given:  # HTTP/1.0 has no Host header, and no browser speaks it
            return None if scope.get("http_version") == "1.0" else _MISSING
        read = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        if read is None:
            return _MALFORMED
        host = read[1].lower().rstrip(b".")
        known = host in self._names or host.endswith(self._endings)
        known = known or (self._addresses and _is_address(host))
        return None if known else _NOT_ALLOWED


def _is_address(host: bytes) -> bool:
    text = host.decode()
    try:
        if text.startswith("["):
            ipaddress.IPv6Address(text[1:-1])
        else:
            ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
