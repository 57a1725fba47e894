"""uvicorn's HTTP protocol with limits per connection.

httptools has no limits: it accepts a header of 32 MB. Here the head is counted as it arrives. The
connection ends if a head is too large or too slow, if a body is too slow or has too many chunks, or
if the client does not read. Requests to switch protocols (WebSocket, HTTP/2) are ignored, as
HTTP allows.
"""

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from openai_frontend.middleware import direct_writer
from openai_frontend.middleware.direct_writer import TRANSPORT, DirectWriter
from openai_frontend.middleware.request_id import new_request_id
from openai_frontend.request_context.context import Transport
from openai_frontend.runtime.heartbeat import Heartbeat
from openai_frontend.server import http1, http2
from openai_frontend.server.limits import (
    MALFORMED,
    ConnectionLimit,
    NullCounts,
    ProtocolCounts,
    ProtocolLimits,
    RequestLimits,
    RequestRejected,
    SlowClientDetector,
)
from openai_frontend.serving.error_reply import ErrorReply, http_error
from openai_frontend.text_relay import StreamWriter

if TYPE_CHECKING:  # a private module
    from uvicorn._types import ASGI3Application

logger = logging.getLogger(__name__)

# Closing a connection while the client still sends resets it, and the client may never read the
# response.
LINGER_S = 1.0

Phase = Literal["header", "body"]

_TIMEOUTS: Mapping[Phase, ErrorReply] = {
    "header": http_error(
        408, "The request headers did not arrive in time.", "request_header_timeout"
    ),
    "body": http_error(408, "The request body did not arrive in time.", "request_body_timeout"),
}


class LimitedHttpProtocol(HttpToolsProtocol):
    """Answers a request beyond a limit with its status if possible, then closes the connection."""

    limits = ProtocolLimits()
    counts: ProtocolCounts = NullCounts()
    writes_directly = False  # past ASGI
    app_root_path = ""  # uvicorn would prefix every path with its own `root_path`
    http2_log = http2.Http2Log()
    heartbeat = Heartbeat()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_open = self._body_open = False
        self._request_limits = RequestLimits(self.limits)
        self._opening: bytes | None = b""  # what has been received, while it may begin HTTP/2
        self._rejected = self._disconnected = False
        # method and version of a request to switch protocols
        self._upgrading: tuple[bytes, bytes] | None = None
        self._unparsed = b""
        self._data = b""
        self._timeout: asyncio.TimerHandle | None = None  # for a head or a body
        self._slow_client: SlowClientDetector | None = None
        self._responding: RequestResponseCycle | None = None
        self._lost = self.loop.create_future()
        self._request_transport = Transport(self._lost)  # of the last request
        self.stream_writer: StreamWriter | None = None  # of a streamed response

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timeout("header", self.limits.header_timeout_s)
        connections, limits = len(self.connections), self.limits
        if connections > limits.max_connections:
            self.counts.rejected("", "connections")
            self.app = ConnectionLimit(self.app, limits.max_connections, self.app_root_path)
            if connections > limits.most_connections:
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timeout()
        if self._slow_client is not None:
            self._slow_client.stop()
        self._cancel_responses()  # uvicorn cancels only the last request, which may still be queued
        super().connection_lost(exc)

    # ---- receiving ----

    def data_received(self, data: bytes) -> None:
        if self._opening is not None:
            self._refuse_http2(self._opening + data[: len(http2.PREFACE)])
        while data and not self._rejected:
            self._data, self._unparsed = data, b""
            self._receive(data)
            data = self._unparsed

    def _refuse_http2(self, opening: bytes) -> None:
        """Refuses HTTP/2 by the connection's first bytes, which may arrive in several parts."""
        is_http2 = opening.startswith(http2.PREFACE)
        self._opening = None if is_http2 or not http2.PREFACE.startswith(opening) else opening
        if is_http2:
            self.http2_log.warn(self.client[0] if self.client else "unix", self.loop.time())
            self._reject(http2.REFUSAL)

    def _receive(self, data: bytes) -> None:
        continues_head = self._head_open
        super().data_received(data)
        if self._rejected:
            return
        if self._body_open:
            self._start_timeout("body", self.limits.body_timeout_s)
        elif self._head_open:
            self._start_timeout("header", self.limits.header_timeout_s)
            if continues_head:
                self._count_buffered_head(data)
        elif self._is_idle() and self.timeout_keep_alive_task is None:
            # Empty lines may never become a request
            self._start_timeout("header", self.limits.header_timeout_s)

    def _count_buffered_head(self, data: bytes) -> None:
        try:
            self._request_limits.count_buffered_head(len(data))
        except RequestRejected:
            self.send_400_response("")

    def _is_idle(self) -> bool:
        return self.cycle is not None and self.cycle.response_complete

    def on_message_begin(self) -> None:
        self._head_open = True
        self._request_limits.begin()
        self.heartbeat.begin()
        super().on_message_begin()
        self._request_transport = self.scope["state"][TRANSPORT] = Transport(self._lost)

    def on_url(self, url: bytes) -> None:
        self._request_limits.url(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """uvicorn's, with the limits. Does not call it: clients send a dozen headers."""
        name = name.lower()
        self._request_limits.header(name, value)
        if not self._head_open:  # ignore trailers, which a proxy does not check
            return
        if value[-1:] in b" \t":  # llhttp leaves what RFC 9110, 5.5, excludes
            value = value.rstrip(b" \t")
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._head_open = False
        if self._timeout is not None:
            self._cancel_timeout()
        self._request_limits.version(self.parser.get_http_version())
        method = self.parser.get_method()
        if self.parser.should_upgrade() and method != b"CONNECT":
            self._upgrading = method, self.parser.get_http_version().encode()
            return
        self._upgrading = None
        if self.limits.request_timeout_s:
            end_s = self.loop.time() + self.limits.request_timeout_s
            self._request_transport.deadline = end_s, self.counts.timed_out
        super().on_headers_complete()
        self._body_open = True  # uvicorn may have rejected the URL before

    def on_chunk_header(self) -> None:
        """httptools' callback for each chunk of a body."""
        self._request_limits.chunk()

    def on_message_complete(self) -> None:
        if self._upgrading is None:
            self._body_open = False
            if self._timeout is not None:
                self._cancel_timeout()
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn's hook for upgrades; parses the request again without its Upgrade header.

        The parser has skipped the body, which would be lost or parsed as the next request. Java's
        HTTP client sends `Upgrade: h2c` with each request.
        """
        stop = sys.exception()
        if isinstance(stop, httptools.HttpParserUpgrade) and self._upgrading is not None:
            method, version = self._upgrading
            kept = [header for header in self.headers if header[0] != b"upgrade"]
            head = http1.message_head(b"%s %s HTTP/%s" % (method, self.url, version), kept)
            self._unparsed = head + self._data[stop.args[0] :]
            self.parser = httptools.HttpRequestParser(self)  # continues after `connection: close`
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    # ---- rejecting ----

    def send_400_response(self, msg: str) -> None:
        """uvicorn's hook for parser errors; answers with OpenAI's error envelope."""
        self._reject(self._request_limits.rejection or MALFORMED)

    def _reject(self, reply: ErrorReply) -> None:
        """Sends the reply unless another response has started, and closes the connection."""
        request_id = new_request_id()  # the head, with the client's id, could not be parsed
        logger.info("request %s rejected: %s", request_id, http1.REASONS[reply.status])
        if not self._response_started():
            headers = self.server_state.default_headers
            self.transport.write(http1.closing_response(reply, request_id, headers))
        if self.transport.can_write_eof():  # TLS cannot close one direction only
            self.transport.write_eof()
        self._rejected = True
        self._cancel_responses()
        self._cancel_timeout()
        self.loop.call_later(LINGER_S, self.transport.close)
        self._watch_client()

    def _response_started(self) -> bool:
        """Whether the response to this request, or to a pipelined one before it, is incomplete."""
        cycle = self._responding
        if cycle is None or not cycle.response_started:
            return False
        return (self._body_open and cycle is self.cycle) or not cycle.response_complete

    def _cancel_responses(self) -> None:
        """Tells running requests that the client has disconnected, and drops queued ones."""
        if self.stream_writer is not None:
            self.stream_writer.close()
        self._set_connection_lost()
        self.pipeline.clear()
        for cycle in (self._responding, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.waiting_for_100_continue = (
                    False  # else 100 Continue would follow the rejection
                )
                cycle.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: "ASGI3Application") -> None:
        """uvicorn's hook for starting a response. `self.cycle` is the last request's, which may be
        queued behind this one.
        """
        self._responding = cycle
        if self.writes_directly and cycle.scope["http_version"] != "1.0":
            cycle.scope["state"][TRANSPORT].sink = DirectWriter(cycle, self)
        super()._start_asgi_task(cycle, http1.until_close(cycle, app))

    def close_incomplete(self) -> None:
        """Closes the connection once the client has what was written, before the response's end."""
        self._cancel_responses()
        self.transport.close()
        self._watch_client()

    def _set_connection_lost(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)

    def _start_timeout(self, phase: Phase, timeout_s: float) -> None:
        if self._timeout is None:
            self._timeout = self.loop.call_later(timeout_s, self._on_timeout, phase, timeout_s)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _on_timeout(self, phase: Phase, timeout_s: float) -> None:
        self._timeout = None
        if self.flow.read_paused:  # the server does not read: the client is not to blame
            self._start_timeout(phase, timeout_s)
            return
        if not (
            self._head_open or self._body_open
        ):  # no request has started that could be answered
            self.transport.close()
            return
        self.counts.timed_out(phase)
        self._reject(_TIMEOUTS[phase])

    # ---- sending ----

    def pause_writing(self) -> None:
        """The transport's write buffer is full."""
        super().pause_writing()
        if self.stream_writer is not None:
            self.stream_writer.pause()
        self._watch_client()

    def resume_writing(self) -> None:
        """The transport's write buffer has room again."""
        super().resume_writing()
        if self.stream_writer is not None:
            self.stream_writer.resume()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._watch_client()

    def _watch_client(self) -> None:
        if self._slow_client is None:
            self._slow_client = SlowClientDetector(
                self.transport,
                timeout_s=self.limits.send_timeout_s,
                is_paused=self._is_writing_paused,
                disconnect=self.disconnect_slow_client,
            )
        self._slow_client.watch()

    def _is_writing_paused(self) -> bool:
        return self.flow.write_paused or self.transport.is_closing() or self._is_idle()

    def disconnect_slow_client(self) -> None:
        """Aborts the connection, with all data in its buffer."""
        if self._disconnected:
            return
        self._disconnected = True
        request_id = self._request_transport.request_id
        logger.info("request %s: disconnected a client that reads too slowly", request_id)
        self.counts.slow_client_disconnected()
        self.transport.abort()


class WrappedHttpProtocol(LimitedHttpProtocol):
    """For the uvicorn of a framework that wraps the application and its `send`, as Ray does."""

    encoded_headers: Sequence[tuple[bytes, bytes]] = ()  # instead of the framework's
    request_headers: Sequence[tuple[bytes, bytes]] = ()  # for the framework

    def __init__(self, config: uvicorn.Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        if config.encoded_headers != self.encoded_headers:  # the first connection
            config.encoded_headers = [*self.encoded_headers]
            state = self.server_state  # which copies them once a second
            date = [header for header in state.default_headers if header[0] == b"date"]
            state.default_headers = [*date, *self.encoded_headers]

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        # The request's task begins later. An upgrade is parsed once more, as a request without it.
        if self._upgrading is None:
            self.headers += self.request_headers


def limited_protocol(
    limits: ProtocolLimits,
    counts: ProtocolCounts | None = None,
    *,
    root_path: str = "",
    heartbeat: Heartbeat | None = None,
    headers: Sequence[tuple[str, str]] | None = None,
    request_headers: Sequence[tuple[str, str]] = (),
) -> type[LimitedHttpProtocol]:
    """The protocol class with its limits, for `uvicorn.Config(http=...)`; `heartbeat` counts its
    requests.

    If another framework makes the Config and wraps the application: `headers` of all responses, and
    `request_headers` that the framework finds in all requests.
    """
    attributes = {
        "limits": limits,
        "counts": counts or NullCounts(),
        "app_root_path": root_path,
        "heartbeat": heartbeat or Heartbeat(),
        "writes_directly": direct_writer.is_supported(),
    }
    if headers is None:
        return type("LimitedHttpProtocol", (LimitedHttpProtocol,), attributes)
    attributes["encoded_headers"] = _encoded(headers)
    attributes["request_headers"] = _encoded(request_headers)
    return type("WrappedHttpProtocol", (WrappedHttpProtocol,), attributes)


def _encoded(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers]
