"""Rejects requests whose Host header is not a name of this server.

It prevents DNS rebinding: a web page can make its own host name resolve to the gateway on the
user's machine, but the Host header still contains the page's name.
"""

import ipaddress
import re
from collections.abc import Awaitable, Sequence
from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware.error_responses import send_error
from openai_frontend.serving.error_reply import ErrorReply, http_error

HEALTH_PATHS = frozenset(
    {
        "/health", "/health/live", "/health/ready", "/healthz", "/ping",
        "/v2/health/live", "/v2/health/ready",
    }
)  # fmt: skip

# Names that programs and containers on the same machine use by default. No site on the internet
# can have one of them.
LOCAL = ("localhost", "*.localhost", "host.docker.internal", "host.containers.internal")

# The whole header: a name or an address, and a port. Programs disagree about how to parse other
# forms (`a@b`, `a/x?`, `a#`).
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
    """Health checks pass with any Host header, since supervisors often use an address."""

    def __init__(self, app: ASGIApp, *, allowed: Sequence[str], addresses: bool = False) -> None:
        """`allowed`: names, and `*.example.com` for all subdomains. `addresses`: also allow IP
        addresses.
        """
        self._app = app
        self._addresses = addresses
        self._names = {name.encode() for name in allowed if not name.startswith("*.")}
        self._endings = tuple(name[1:].encode() for name in allowed if name.startswith("*."))
        self._error_for = lru_cache(maxsize=128)(self._check)  # clients repeat their Host

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine itself, since most requests pass."""
        error = self._error(scope) if scope["type"] == "http" else None
        if error is None:
            return self._app(scope, receive, send)
        return send_error(scope, send, error)

    def _error(self, scope: Scope) -> ErrorReply | None:
        if scope["path"] in HEALTH_PATHS:
            return None
        host: bytes | None = None
        for name, value in scope["headers"]:
            if name == b"host":
                if host is not None:
                    return _MALFORMED
                host = value
        if host is None:  # optional in HTTP/1.0, which no browser uses
            return None if scope.get("http_version") == "1.0" else _MISSING
        return self._error_for(host)

    def _check(self, header: bytes) -> ErrorReply | None:
        match = _HOST.fullmatch(header)
        if match is None:
            return _MALFORMED
        host = match[1].lower().rstrip(b".")
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
