"""The server's connections and their calls. gRPC's library has no function that closes one."""

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from urllib.parse import unquote

Address = tuple[str, int]  # numeric host, without brackets and zone; port

# The open files of this process, on Linux and macOS
_DESCRIPTORS = "/dev/fd"


class RpcConnections:
    """Counts calls by connection, and closes connections of the port that the server listens on."""

    def __init__(self) -> None:
        self.port = 0  # known once the server listens
        self._running: Counter[str] = Counter()  # calls of each peer

    def begin(self, peer: str) -> None:
        """A call of a client begins; `peer` is what gRPC names the client."""
        self._running[peer] += 1

    def end(self, peer: str) -> None:
        """One of its calls has been answered, whether or not the client has read the answer."""
        self._running[peer] -= 1
        if not self._running[peer]:
            del self._running[peer]

    def in_use(self, peer: str) -> bool:
        """Whether calls of the client run."""
        return peer in self._running

    def close(self, peer: str) -> bool:
        """Close the connection of a client, with all its calls. Return whether it was found; one
        without an address is not.
        """
        if (wanted := address_of(peer)) is None:
            return False
        for name in os.listdir(_DESCRIPTORS):
            with _socket(int(name)) as connection:
                if connection is not None and self._client_of(connection) == wanted:
                    connection.shutdown(socket.SHUT_RDWR)
                    return True
        return False

    def _client_of(self, connection: socket.socket) -> Address | None:
        """None if it is not a connection of this server."""
        try:
            if connection.getsockname()[1] != self.port:
                return None
            return _address(*connection.getpeername()[:2])
        except (OSError, IndexError, ValueError):
            return None  # it listens, or is a socket of another kind


@contextlib.contextmanager
def _socket(descriptor: int) -> Iterator[socket.socket | None]:
    """A duplicate of an open socket, whose descriptor cannot be reused meanwhile; or None."""
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        yield None  # closed since it was listed
        return
    try:
        connection = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        yield None
        return
    with connection:
        yield connection


def address_of(peer: str) -> Address | None:
    """The address of a peer such as `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`; None for a Unix
    socket.
    """
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    host, _, port = rest.rpartition(":")
    return _address(host.strip("[]"), int(port))


def _address(host: str, port: int) -> Address:
    """One form for a client of IPv4, also if the socket is one of IPv6."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address), port
