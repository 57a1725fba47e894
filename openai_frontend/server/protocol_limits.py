"""What a connection may take: sizes, counts and times. Values alone; the protocol holds to them."""

from dataclasses import dataclass
from typing import Literal, Protocol

# More headers than any client sends, and a longer address than any client asks for
MAX_HEADERS = 100
MAX_REQUEST_LINE_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolLimits:
    """The settings of the same names; the defaults are theirs."""

    max_header_bytes: int = 64 * 1024
    max_body_chunks: int = 65_536
    max_connections: int = 4096
    header_timeout_s: float = 20.0
    body_timeout_s: float = 120.0
    request_timeout_s: float = 3600.0  # 0: none
    send_timeout_s: float = 30.0

    @property
    def most_connections(self) -> int:
        """With those that are held only to be told that they are too many."""
        return self.max_connections + max(1, self.max_connections // 10)


class ProtocolCounts(Protocol):
    """Who is told of what the limits did."""

    def slow_client_disconnected(self) -> None:
        """A client read too slowly."""

    def timed_out(self, kind: Literal["head", "body", "total"], /) -> None:
        """What has not come in time; `total` is the answer's end."""

    def rejected(self, model: str, reason: Literal["connections"], /) -> None:
        """A connection was one too many, whatever its requests would name."""


class NullCounts:
    """Tells nobody."""

    def slow_client_disconnected(self) -> None:
        """Nobody counts."""

    def timed_out(self, kind: Literal["head", "body", "total"], /) -> None:
        """The same."""

    def rejected(self, model: str, reason: Literal["connections"], /) -> None:
        """The same."""
