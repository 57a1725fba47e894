"""uvicorn's HTTP protocol with limits on a request's head. Never sees a body's meaning.

httptools has no limit of its own: a header of 32 MB is taken. Here the head is counted as it comes,
and one that is too large, or too slow, ends the connection before it is held. A wish for another
protocol (WebSocket, HTTP/2) is overheard, as HTTP allows.
"""

import asyncio
import logging
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from openai_frontend.generation import ChunkedSocket
from openai_frontend.middleware.request_id import new_request_id
from openai_frontend.serving.failure import refused

logger = logging.getLogger(__name__)

MAX_HEADERS = 100
HEAD_TIMEOUT_S = 20.0
# A connection closed while its client still writes is reset, and the client never sees the answer.
LINGER_S = 1.0

_MALFORMED = refused(400, "Invalid HTTP request received.", "invalid_http")
_TOO_LARGE = refused(431, "The request's headers are too large.", "request_headers_too_large")
_REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large"}


class _HeadTooLarge(Exception):
    """Stops the parser; it comes back as the parser's own error."""


class GuardedHttpProtocol(HttpToolsProtocol):
    """Refuses heads over `max_header_bytes` or 100 headers with 431, late ones by closing."""

    max_header_bytes = 64 * 1024

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_open = False
        self._head_bytes = 0  # of what the parser has told
        self._untold_bytes = 0  # of what it still holds, in whole reads
        self._too_large = False
        self._refused = False
        # method and version of a request that wishes for another protocol
        self._upgrading: tuple[bytes, bytes] | None = None
        self._read_again = b""
        self._data = b""
        self._head_timeout: asyncio.TimerHandle | None = None
        self._lost = self.loop.create_future()
        self.socket: ChunkedSocket | None = (
            None  # to which a response is written past the transport
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timeout()
        if self.socket is not None:
            self.socket.close()
        self._tell_lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and not self._refused:
            self._data, self._read_again = data, b""
            self._receive(data)
            data = self._read_again

    def _receive(self, data: bytes) -> None:
        continues_head = self._head_open
        super().data_received(data)
        if not self._head_open or self._refused:
            return
        self._start_head_timeout()
        if continues_head:
            self._untold_bytes += len(data)
        if self._untold_bytes > self.max_header_bytes:
            self._too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self._head_open = True
        self._head_bytes = self._untold_bytes = 0
        super().on_message_begin()
        self.scope["state"]["connection_lost"] = self._lost

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        if self._head_bytes > self.max_header_bytes:
            self._refuse_head()
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self.max_header_bytes or len(self.headers) >= MAX_HEADERS:
            self._refuse_head()
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_open = False
        self._stop_head_timeout()
        method = self.parser.get_method()
        if self.parser.should_upgrade() and method != b"CONNECT":
            self._upgrading = method, self.parser.get_http_version().encode()
        else:
            self._upgrading = None
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._upgrading is None:
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """What uvicorn does about an upgrade: here the request is read again without the wish.

        The parser has skipped its body, which would be lost, or pass for a request of its own.
        Java's HTTP client wishes for HTTP/2 in each request.
        """
        stop = sys.exception()
        if isinstance(stop, httptools.HttpParserUpgrade) and self._upgrading is not None:
            method, version = self._upgrading
            head = _head(b"%s %s HTTP/%s" % (method, self.url, version), self.headers)
            self._read_again = head + self._data[stop.args[0] :]
            self.parser = httptools.HttpRequestParser(self)  # after `connection: close` it reads on
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def _refuse_head(self) -> NoReturn:
        self._too_large = True
        raise _HeadTooLarge

    def send_400_response(self, msg: str) -> None:
        """uvicorn's word for any head that cannot be parsed; here in OpenAI's envelope."""
        failure = _TOO_LARGE if self._too_large else _MALFORMED
        request_id = new_request_id()  # a head that cannot be read has no id to repeat
        logger.info("request %s refused: %s", request_id, _REASONS[failure.status])
        head = (
            f"HTTP/1.1 {failure.status} {_REASONS[failure.status]}\r\n"
            "content-type: application/json\r\n"
            f"x-request-id: {request_id}\r\n"
            f"content-length: {len(failure.body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + failure.body)
        self.transport.write_eof()
        self._refused = True
        self._end_current_answer()
        self._stop_head_timeout()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _end_current_answer(self) -> None:
        """To an answer that is still being made, for an earlier request, the client has gone."""
        self._tell_lost()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _tell_lost(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)

    def _start_head_timeout(self) -> None:
        if self._head_timeout is None:
            self._head_timeout = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _stop_head_timeout(self) -> None:
        if self._head_timeout is not None:
            self._head_timeout.cancel()
            self._head_timeout = None


def _head(request_line: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A request's head as it came, but for the header `upgrade`."""
    lines = [b"%s: %s" % (name, value) for name, value in headers if name != b"upgrade"]
    return b"\r\n".join([request_line, *lines, b"", b""])


def guarded_protocol(max_header_bytes: int) -> type[GuardedHttpProtocol]:
    """The protocol class with a limit, for `uvicorn.Config(http=...)`."""
    return type(
        "GuardedHttpProtocol", (GuardedHttpProtocol,), {"max_header_bytes": max_header_bytes}
    )
