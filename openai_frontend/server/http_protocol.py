"""uvicorn's HTTP protocol with limits on a connection. Never sees a body's meaning.

httptools has no limit of its own: a header of 32 MB is taken. Here the head is counted as it comes,
and one that is too large, or too slow, ends the connection before it is held; so does a body that
is too slow, or in too many pieces, and a client that does not read. A wish for another protocol
(WebSocket, HTTP/2) is ignored, as HTTP allows.
"""

import asyncio
import logging
import sys
from collections.abc import Mapping
from typing import Any, Literal

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from openai_frontend.generation import ChunkedSocket
from openai_frontend.middleware.request_id import new_request_id
from openai_frontend.server import raw_response
from openai_frontend.server.connection_limit import ConnectionLimit
from openai_frontend.server.protocol_limits import (
    NullCounts,
    ProtocolCounts,
    ProtocolLimits,
)
from openai_frontend.server.request_limits import MALFORMED, RequestLimits, RequestRefused
from openai_frontend.server.slow_client import SlowClientDetector
from openai_frontend.server.until_close import until_close
from openai_frontend.serving.error_reply import ErrorReply, http_error

logger = logging.getLogger(__name__)

# A connection closed while its client still writes is reset, and the client never sees the answer.
LINGER_S = 1.0

Late = Literal["head", "body"]

_LATE: Mapping[Late, ErrorReply] = {
    "head": http_error(408, "The request headers did not arrive in time.", "request_head_timeout"),
    "body": http_error(408, "The request body did not arrive in time.", "request_body_timeout"),
}


class LimitedHttpProtocol(HttpToolsProtocol):
    """Holds a connection to its limits. What it refuses gets its status where one can be told."""

    limits = ProtocolLimits()
    counts: ProtocolCounts = NullCounts()
    app_root_path = ""  # uvicorn would put its own `root_path` before every path

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_open = self._body_open = False
        self._incoming = RequestLimits(self.limits)
        self._refused = self._dropped = False
        # method and version of a request that wishes for another protocol
        self._upgrading: tuple[bytes, bytes] | None = None
        self._read_again = b""
        self._data = b""
        self._timeout: asyncio.TimerHandle | None = None  # of a head or a body
        self._reader: SlowClientDetector | None = None
        self._answering: RequestResponseCycle | None = None
        self._lost = self.loop.create_future()
        self.socket: ChunkedSocket | None = (
            None  # to which a response is written past the transport
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await("head", self.limits.header_timeout_s)
        connections, limits = len(self.connections), self.limits
        if connections > limits.max_connections:
            self.counts.rejected("", "connections")
            self.app = ConnectionLimit(self.app, limits.max_connections, self.app_root_path)
            if connections > limits.most_connections:
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_no_more()
        if self._reader is not None:
            self._reader.stop()
        if self.socket is not None:
            self.socket.close()
        self._end_current_answer()  # uvicorn tells the last request alone, which may wait behind it
        super().connection_lost(exc)

    # ---- what comes in ----

    def data_received(self, data: bytes) -> None:
        while data and not self._refused:
            self._data, self._read_again = data, b""
            self._receive(data)
            data = self._read_again

    def _receive(self, data: bytes) -> None:
        continues_head = self._head_open
        super().data_received(data)
        if self._refused:
            return
        if self._body_open:
            self._await("body", self.limits.body_timeout_s)
        elif self._head_open:
            self._await("head", self.limits.header_timeout_s)
            if continues_head:
                self._count_untold(data)
        elif self._is_idle() and self.timeout_keep_alive_task is None:
            self._await("head", self.limits.header_timeout_s)  # of empty lines no request may come

    def _count_untold(self, data: bytes) -> None:
        try:
            self._incoming.untold(len(data))
        except RequestRefused:
            self.send_400_response("")

    def _is_idle(self) -> bool:
        return self.cycle is not None and self.cycle.response_complete

    def on_message_begin(self) -> None:
        self._head_open = True
        self._incoming.begin(self.limits)
        super().on_message_begin()
        self.scope["state"]["connection_lost"] = self._lost

    def on_url(self, url: bytes) -> None:
        self._incoming.url(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.header(name, value, before=len(self.headers))
        if self._head_open:  # what follows a body is no header: no proxy has looked at it
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_open = False
        self._await_no_more()
        self._incoming.version(self.parser.get_http_version())
        method = self.parser.get_method()
        if self.parser.should_upgrade() and method != b"CONNECT":
            self._upgrading = method, self.parser.get_http_version().encode()
            return
        self._upgrading = None
        if self.limits.request_timeout_s:
            end_s = self.loop.time() + self.limits.request_timeout_s
            self.scope["state"]["deadline"] = end_s, self.counts.timed_out
        super().on_headers_complete()
        self._body_open = True  # of the request that there is now: an address may be none

    def on_chunk_header(self) -> None:
        """The parser's word for one more piece of a body; other bodies have none."""
        self._incoming.chunk()

    def on_message_complete(self) -> None:
        if self._upgrading is None:
            self._body_open = False
            self._await_no_more()
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """What uvicorn does about an upgrade: here the request is read again without the wish.

        The parser has skipped its body, which would be lost, or pass for a request of its own.
        Java's HTTP client wishes for HTTP/2 in each request.
        """
        stop = sys.exception()
        if isinstance(stop, httptools.HttpParserUpgrade) and self._upgrading is not None:
            method, version = self._upgrading
            kept = [header for header in self.headers if header[0] != b"upgrade"]
            head = raw_response.head(b"%s %s HTTP/%s" % (method, self.url, version), kept)
            self._read_again = head + self._data[stop.args[0] :]
            self.parser = httptools.HttpRequestParser(self)  # after `connection: close` it reads on
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    # ---- what is refused ----

    def send_400_response(self, msg: str) -> None:
        """uvicorn's word for all that the parser stops at; here in OpenAI's envelope."""
        self._end_with(self._incoming.refusal or MALFORMED)

    def _end_with(self, failure: ErrorReply) -> None:
        """The last of this connection. It is not told where another answer has begun."""
        request_id = new_request_id()  # a head that cannot be read has no id to repeat
        logger.info("request %s refused: %s", request_id, raw_response.REASONS[failure.status])
        if not self._has_begun_to_answer():
            headers = self.server_state.default_headers
            self.transport.write(raw_response.refusal(failure, request_id, headers))
        if self.transport.can_write_eof():  # TLS has no half of a connection
            self.transport.write_eof()
        self._refused = True
        self._end_current_answer()
        self._await_no_more()
        self.loop.call_later(LINGER_S, self.transport.close)
        self._watch_reader()

    def _has_begun_to_answer(self) -> bool:
        """This request, or one before it that is not answered to its end."""
        cycle = self._answering
        if cycle is None or not cycle.response_started:
            return False
        return (self._body_open and cycle is self.cycle) or not cycle.response_complete

    def _end_current_answer(self) -> None:
        """To an answer that is still being made, for an earlier request, the client has gone; those
        that wait behind it are not begun.
        """
        self._tell_lost()
        self.pipeline.clear()
        for cycle in (self._answering, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.waiting_for_100_continue = False  # it would be written behind the refusal
                cycle.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """uvicorn's word for an answer that is begun; its `cycle` is the last request's, which may
        be waiting behind this one.
        """
        self._answering = cycle
        super()._start_asgi_task(cycle, until_close(cycle, app))

    def _tell_lost(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)

    def _await(self, what: Late, timeout_s: float) -> None:
        if self._timeout is None:
            self._timeout = self.loop.call_later(timeout_s, self._on_timeout, what, timeout_s)

    def _await_no_more(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _on_timeout(self, what: Late, timeout_s: float) -> None:
        self._timeout = None
        if self.flow.read_paused:  # it is not the client that is late
            self._await(what, timeout_s)
            return
        if not (self._head_open or self._body_open):  # nothing has been begun that could be refused
            self.transport.close()
            return
        self.counts.timed_out(what)
        self._end_with(_LATE[what])

    # ---- what goes out ----

    def pause_writing(self) -> None:
        """The transport's word for a client that is slow."""
        super().pause_writing()
        self._watch_reader()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._watch_reader()

    def _watch_reader(self) -> None:
        if self._reader is None:
            self._reader = SlowClientDetector(
                self.transport,
                timeout_s=self.limits.send_timeout_s,
                waits=self._nobody_writes,
                drop=self.disconnect_slow_client,
            )
        self._reader.watch()

    def _nobody_writes(self) -> bool:
        return self.flow.write_paused or self.transport.is_closing() or self._is_idle()

    def disconnect_slow_client(self) -> None:
        """Ends the connection of a client that reads too slowly, with all that waits for it."""
        if self._dropped:
            return
        self._dropped = True
        state = self.scope["state"] if self.scope is not None else {}
        logger.info("dropped the reader of request %s: too slow", state.get("request_id", "-"))
        self.counts.slow_client_disconnected()
        self.transport.abort()


def limited_protocol(
    limits: ProtocolLimits, counts: ProtocolCounts | None = None, *, root_path: str = ""
) -> type[LimitedHttpProtocol]:
    """The protocol class with its limits, for `uvicorn.Config(http=...)`."""
    held_to = {"limits": limits, "counts": counts or NullCounts(), "app_root_path": root_path}
    return type("LimitedHttpProtocol", (LimitedHttpProtocol,), held_to)
