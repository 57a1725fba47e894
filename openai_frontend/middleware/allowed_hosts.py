"""Refuses requests that call the server by a name that is not its own.

A page of another site can reach a gateway on its user's machine by having its own name resolve to
that address; the Host header still tells the page's name.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware.crowd import HEALTH_PATHS
from openai_frontend.middleware.refusal import send_failure
from openai_frontend.serving.failure import refused

# What programs of the same machine call it, containers' too, where nobody has named it. No address
# on the internet can have one of these names, nor can a page's address become another one's.
LOCAL = ("localhost", "*.localhost", "host.docker.internal", "host.containers.internal")

# The whole header: a name or an address, and a port. What else may stand there by a standard of
# addresses (`a@b`, `a/x?`, `a#`) is read by each program in its own way.
_HOST = re.compile(rb"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")

_REFUSED = refused(
    400,
    "This server is not called by that name (header Host); who runs it can allow the name "
    "(--allowed-host).",
    "invalid_host",
)


class AllowedHosts:
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
        if scope["type"] != "http" or self._allows(scope):
            await self._app(scope, receive, send)
        else:
            await send_failure(scope, send, _REFUSED)

    def _allows(self, scope: Scope) -> bool:
        is_health_check = scope["path"] in HEALTH_PATHS
        host = _host(scope["headers"])
        if host is None:
            return is_health_check
        known = host in self._names or host.endswith(self._endings)
        known = known or (self._addresses and _is_address(host))
        return known or is_health_check


def _host(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Lower case, without port; None where there is none, or not one alone, or a strange one."""
    given = [value for name, value in headers if name == b"host"]
    read = _HOST.fullmatch(given[0]) if len(given) == 1 else None
    return read[1].lower().rstrip(b".") if read else None


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
