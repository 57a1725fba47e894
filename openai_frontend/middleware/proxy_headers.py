"""Sets the scope's `client` and `scheme` from the headers of trusted proxies only."""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from starlette.types import ASGIApp, Receive, Scope, Send

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Client = tuple[str, int]

UNIX = "unix"  # the setting's name for the peer of a Unix socket, which has no address

# 1.2.3.4, 1.2.3.4:5, [2001:db8::1], [2001:db8::1]:5 or 2001:db8::1
_NODE = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<v4>[0-9.]+))(?::(?P<port>[0-9]{1,5}))?")
# One parameter of an element (RFC 7239) with an optionally quoted value, and its terminator
_PARAMETER = re.compile(r'\s*([A-Za-z]+)=(?:"([^"\\]*)"|([^\s",;]*))\s*(;|$)')

# A client may send any number of nodes, and a proxy appends its own: only the nearest are read.
MAX_NODES = 32
_MAX_PARAMETERS = 16  # of an element; RFC 7239 has 4
_NODE_CHARACTERS = 64


class ProxyHeaders:
    """Reads X-Forwarded-For and X-Forwarded-Proto, or Forwarded; if both are present, only if they
    agree: a proxy that sets one of them passes on the other as the client sent it.
    """

    def __init__(self, app: ASGIApp, *, trusted: Sequence[str]) -> None:
        """`trusted`: addresses, networks, or `unix`."""
        self._app = app
        self._unix = UNIX in trusted
        self._networks = [ipaddress.ip_network(each) for each in trusted if each != UNIX]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._trusts_peer(scope.get("client")):
            self._apply(scope)
        await self._app(scope, receive, send)

    def _trusts_peer(self, peer: Client | None) -> bool:
        if not peer or not peer[0]:
            return self._unix
        address = _address(peer[0])
        return address is not None and self._trusts(address)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _apply(self, scope: Scope) -> None:
        headers = scope["headers"]
        claims = []
        if lines := _values(headers, b"x-forwarded-for"):
            protocols = ",".join(_values(headers, b"x-forwarded-proto"))
            claims.append((self._first_untrusted(_nearest(lines)), protocols.strip().lower()))
        if lines := _values(headers, b"forwarded"):
            claims.append(self._forwarded(lines))
        if not claims or claims[0] != claims[-1]:
            return
        client, scheme = claims[0]
        if client is not None:
            scope["client"] = client
        if scheme in ("http", "https"):
            scope["scheme"] = scheme

    def _forwarded(self, lines: Iterable[str]) -> tuple[Client | None, str]:
        elements = map(_parameters, _nearest_elements(",".join(lines)))
        nearest = next(elements)
        nodes = (element.get("for", "") for element in chain([nearest], elements))
        return self._first_untrusted(nodes), nearest.get("proto", "").lower()

    def _first_untrusted(self, nodes: Iterable[str]) -> Client | None:
        """The first node that is not a trusted proxy, else the last; None if it or an earlier one
        is not an IP address. `nodes`: the nearest first.
        """
        client: Client | None = None
        for node in nodes:
            if len(node) > _NODE_CHARACTERS:
                return None
            match = _NODE.fullmatch(node)
            host = (match["v6"] or match["v4"]) if match else node
            address = None if "%" in host else _address(host)  # a zone id can be any text
            if address is None:
                return None
            client = str(address), int((match and match["port"]) or 0)
            if not self._trusts(address):
                break
        return client


def _values(headers: Iterable[tuple[bytes, bytes]], header: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in headers if name == header]


def _nearest(lines: Iterable[str]) -> Iterator[str]:
    """The nodes, nearest first. Beyond MAX_NODES, the last item is the rest of the header."""
    return (node.strip() for node in reversed(",".join(lines).rsplit(",", MAX_NODES)))


def _nearest_elements(text: str) -> Iterator[str]:
    """The elements of a Forwarded header, nearest first. Commas in quotes separate none: the number
    of quotes behind them is odd.
    """
    end = at = len(text)
    quotes = 0
    for _ in range(MAX_NODES):
        comma = text.rfind(",", 0, at)
        quotes += text.count('"', comma + 1, at)
        at = comma
        if quotes % 2 == 0:
            yield text[comma + 1 : end]
            end = comma
        if comma < 0:
            break
    if end >= 0:
        yield ""  # an unclosed quote, or too many elements


def _address(text: str) -> Address | None:
    """Maps IPv4-mapped IPv6 addresses to IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _parameters(element: str) -> dict[str, str]:
    """The parameters of a Forwarded element (RFC 7239); none if it is malformed."""
    parameters: dict[str, str] = {}
    at = 0
    for _ in range(_MAX_PARAMETERS):
        if at == len(element):
            return parameters
        match = _PARAMETER.match(element, at)
        if match is None:
            return {}
        name, quoted, plain, _ = match.groups()
        parameters[name.lower()] = plain if quoted is None else quoted
        at = match.end()
    return {}
