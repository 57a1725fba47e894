"""Limits of connections: their number, their requests, and clients that do not read.

A request is checked while it arrives, before it is stored.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.errors import ServerOverloaded
from openai_frontend.middleware.error_responses import send_error
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.middleware.request_normalization import normalized_path
from openai_frontend.middleware.trusted_hosts import HEALTH_PATHS
from openai_frontend.serving.error_reply import ErrorReply, http_error, reply_for

# More headers and a longer URL than any known client sends
MAX_HEADERS = 100
MAX_REQUEST_LINE_BYTES = 8 * 1024

MALFORMED = http_error(400, "Invalid HTTP request received.", "invalid_http")

_TOO_MANY_HEADERS = http_error(
    431, f"The request has more than {MAX_HEADERS} headers.", "request_headers_too_large"
)

_TRANSFER_ENCODING = b"transfer-encoding"
_VERSIONS = ("1.1", "1.0")  # the parser also accepts 0.9 and 2.0

MAX_BODY_CHUNKS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolLimits:
    """The settings of the same names, with their defaults."""

    max_header_bytes: int = 64 * 1024
    max_connections: int = 4096
    header_timeout_s: float = 20.0
    body_timeout_s: float = 120.0
    request_timeout_s: float = 3600.0  # 0: no timeout
    send_timeout_s: float = 30.0

    @property
    def most_connections(self) -> int:
        """Including connections that are accepted only to answer 503."""
        return self.max_connections + max(1, self.max_connections // 10)


class ProtocolCounts(Protocol):
    """Receives events of the limits, for metrics."""

    def slow_client_disconnected(self) -> None:
        """A client that read too slowly was disconnected."""

    def timed_out(self, kind: Literal["header", "body", "total"], /) -> None:
        """`total`: the request timeout."""

    def rejected(self, model: str, reason: Literal["connections"], /) -> None:
        """A connection was over the limit; its model is not known."""


class NullCounts:
    """Ignores the events."""

    def slow_client_disconnected(self) -> None:
        pass

    def timed_out(self, kind: Literal["header", "body", "total"], /) -> None:
        pass

    def rejected(self, model: str, reason: Literal["connections"], /) -> None:
        pass


class RequestRejected(Exception):
    """Stops the parser, which raises its own error; the reply is `RequestLimits.rejection`."""


class RequestLimits:
    """Checks the requests of a connection one after the other, from the parser's callbacks.

    The methods raise RequestRejected if the request exceeds a limit.
    """

    def __init__(self, limits: ProtocolLimits) -> None:
        self._limits = limits
        self._max_url_bytes = min(limits.max_header_bytes, MAX_REQUEST_LINE_BYTES)
        self.rejection: ErrorReply | None = None  # None: a parser error means a malformed request
        self.begin()

    def begin(self) -> None:
        """A new request begins."""
        self._headers = self._head_bytes = 0  # reported by the parser, including trailers
        self._buffered_bytes = 0  # read, but not reported by the parser yet; in whole reads
        self._chunks = 0
        self._has_transfer_encoding = False

    def url(self, url: bytes) -> None:
        """A part of the URL."""
        self._head_bytes += len(url)
        if self._head_bytes > self._max_url_bytes:
            message = f"The URL of the request is longer than {self._max_url_bytes} bytes."
            self._reject(http_error(414, message, "request_url_too_long"))

    def header(self, name: bytes, value: bytes) -> None:
        """A header or a trailer, its name in lower case."""
        self._head_bytes += len(name) + len(value)
        self._headers += 1
        if self._headers > MAX_HEADERS:
            self._reject(_TOO_MANY_HEADERS)
        if self._head_bytes > self._limits.max_header_bytes:
            self._reject_large_head()
        if name == _TRANSFER_ENCODING:
            self._check_coding(value)

    def version(self, version: str) -> None:
        """The HTTP version of the request."""
        if version not in _VERSIONS:
            self._reject(MALFORMED)

    def chunk(self) -> None:
        """A chunk of the body begins."""
        self._chunks += 1
        if self._chunks > MAX_BODY_CHUNKS:
            message = f"The request body has more than {MAX_BODY_CHUNKS} chunks."
            self._reject(http_error(413, message, "request_too_large"))

    def count_buffered_head(self, length: int) -> None:
        """Bytes of the head that the parser has read but not reported yet."""
        self._buffered_bytes += length
        if self._buffered_bytes > self._limits.max_header_bytes:
            self._reject_large_head()

    def _check_coding(self, value: bytes) -> None:
        """Allows only `chunked`, once. The parser also accepts `gzip, chunked` and two headers,
        which a proxy may interpret differently (request smuggling).
        """
        if self._has_transfer_encoding or value.strip().lower() != b"chunked":
            self._reject(MALFORMED)
        self._has_transfer_encoding = True

    def _reject_large_head(self) -> NoReturn:
        limit = self._limits.max_header_bytes
        message = f"The request headers are larger than {limit} bytes (--max-header-bytes)."
        self._reject(http_error(431, message, "request_headers_too_large"))

    def _reject(self, failure: ErrorReply) -> NoReturn:
        self.rejection = failure
        raise RequestRejected


CHECKS = 4  # per timeout


class SlowClientDetector:
    """Detects a client that does not read its response, from the transport's write buffer.

    Checks the connection only while data waits in the buffer.

    While the writers are paused, and after the last write, the buffer can only shrink, and only by
    what the client reads. If it shrinks at all, the timeout starts again.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        timeout_s: float,
        is_paused: Callable[[], bool],
        disconnect: Callable[[], None],
    ) -> None:
        """`is_paused`: nothing writes to the buffer now. `disconnect` closes the connection."""
        self._transport = transport
        self._timeout_s = timeout_s
        self._is_paused = is_paused
        self._disconnect = disconnect
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None
        self._buffered = 0
        self._since_s = 0.0

    def watch(self) -> None:
        """Starts checking, until the buffer is empty."""
        if self._next is None:
            self._buffered = self._transport.get_write_buffer_size()
            self._since_s = self._loop.time()
            self._schedule()

    def stop(self) -> None:
        """Stops checking."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _schedule(self) -> None:
        self._next = self._loop.call_later(self._timeout_s / CHECKS, self._check)

    def _check(self) -> None:
        self._next = None
        buffered, now_s = self._transport.get_write_buffer_size(), self._loop.time()
        if not buffered or not self._is_paused():
            return
        if buffered < self._buffered:
            self._since_s = now_s
        self._buffered = buffered
        if now_s - self._since_s >= self._timeout_s:
            self._disconnect()
        else:
            self._schedule()


class ConnectionLimit:
    """ASGI app that replaces the gateway for connections beyond `max_connections`.

    Answers 503, except to health checks.
    """

    def __init__(self, app: ASGIApp, max_connections: int, root_path: str = "") -> None:
        self._app = app
        self._root_path = root_path
        self._message = (
            f"The server reached its limit of {max_connections} connections. Retry later."
        )
        self._reject = RequestId(self._send_rejection)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A liveness probe must not restart a server because it is busy.
        is_health_check = normalized_path(scope["path"], self._root_path) in HEALTH_PATHS
        await (self._app if is_health_check else self._reject)(scope, receive, send)

    async def _send_rejection(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = reply_for(ServerOverloaded(self._message))
        reply.headers["connection"] = "close"
        await send_error(scope, send, reply)
