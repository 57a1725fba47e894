"""Whom a request is from, where a proxy that the settings trust says so. Others are not heard.

What is found takes the place of the peer in the scope: `client` and `scheme`.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Client = tuple[str, int]

UNIX = "unix"  # as the setting names the peer of a Unix socket, which has no address

# 1.2.3.4, 1.2.3.4:5, [2001:db8::1], [2001:db8::1]:5 or 2001:db8::1
_NODE = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<v4>[0-9.]+))(?::(?P<port>[0-9]{1,5}))?")
# One parameter of RFC 7239's elements, whose values may be quoted; then what ends it
_PARAMETER = re.compile(r'\s*([A-Za-z]+)=(?:"([^"\\]*)"|([^\s",;]*))\s*([;,]|$)')


class ProxyHeaders:
    """Believes X-Forwarded-For and -Proto, or Forwarded; where both come, only what both say.

    For a proxy that writes one of them passes on the other as its client wrote it.
    """

    def __init__(self, app: ASGIApp, *, trusted: Sequence[str]) -> None:
        """`trusted`: addresses, networks, or `unix`."""
        self._app = app
        self._unix = UNIX in trusted
        self._networks = [ipaddress.ip_network(each) for each in trusted if each != UNIX]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._trusts_peer(scope.get("client")):
            self._believe(scope)
        await self._app(scope, receive, send)

    def _trusts_peer(self, peer: Client | None) -> bool:
        if not peer or not peer[0]:
            return self._unix
        address = _address(peer[0])
        return address is not None and self._trusts(address)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _believe(self, scope: Scope) -> None:
        headers = scope["headers"]
        told = []
        if lines := _values(headers, b"x-forwarded-for"):
            protocols = ",".join(_values(headers, b"x-forwarded-proto"))
            told.append((self._first_stranger(_listed(lines)), protocols.strip().lower()))
        if lines := _values(headers, b"forwarded"):
            told.append(self._forwarded(lines))
        if not told or told[0] != told[-1]:
            return
        client, scheme = told[0]
        if client is not None:
            scope["client"] = client
        if scheme in ("http", "https"):
            scope["scheme"] = scheme

    def _forwarded(self, lines: Iterable[str]) -> tuple[Client | None, str]:
        elements = _elements(",".join(lines))
        if elements is None:
            return None, ""
        nodes = [element.get("for", "") for element in elements]
        return self._first_stranger(nodes), elements[-1].get("proto", "").lower()

    def _first_stranger(self, nodes: Sequence[str]) -> Client | None:
        """From the nearest to the farthest, the first that is no trusted proxy; None where one on
        the way is no address.
        """
        found: Client | None = None
        for node in reversed(nodes):
            read = _NODE.fullmatch(node)
            host = (read["v6"] or read["v4"]) if read else node
            address = None if "%" in host else _address(host)  # a zone may be any text
            if address is None:
                return None
            found = str(address), int((read and read["port"]) or 0)
            if not self._trusts(address):
                break
        return found


def _values(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in headers if name == wanted]


def _listed(lines: Iterable[str]) -> list[str]:
    return [node.strip() for node in ",".join(lines).split(",")]


def _address(text: str) -> Address | None:
    """The same for IPv4 however it is written."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _elements(text: str) -> list[dict[str, str]] | None:
    """RFC 7239's elements, nearest last; None where the text is not of that form."""
    elements: list[dict[str, str]] = [{}]
    at = 0
    while at < len(text):
        read = _PARAMETER.match(text, at)
        if read is None:
            return None
        name, quoted, plain, end = read.groups()
        elements[-1][name.lower()] = plain if quoted is None else quoted
        at = read.end()
        if end == ",":
            elements.append({})
    return elements
