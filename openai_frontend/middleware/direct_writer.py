"""Writes complete responses, and parts of a streamed body, to uvicorn's transport without going
through ASGI `send`.
"""

import functools
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from openai_frontend import compatibility
from openai_frontend.generation import ChunkedSocket

Headers = Sequence[tuple[bytes, bytes]]

# Characters that end a header or that RFC 9110 forbids in one
_FORBIDDEN = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_STATUS_LINES = {
    each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus
}
_CLOSE = (b"connection", b"close")
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding"})


class DirectWriter:
    """Writes a chunk or a complete response at once if the transport is ready.

    uvicorn's `send` is a coroutine that takes a dict and handles all kinds of responses: that
    takes 1.5 us more for each event of a stream.
    """

    __slots__ = ("_cycle", "_flow", "_write")

    # uvicorn's headers of every response, which it replaces each second, as they are and as bytes
    _defaults: ClassVar[tuple[Headers, bytes]] = ((), b"")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle: Any = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    def __call__(self, piece: bytes) -> bool:
        """False if it was not written: then use `send`, which waits or handles the state."""
        cycle = self._cycle
        if (
            not cycle.chunked_encoding  # None before the response starts
            or cycle.response_complete
            or cycle.disconnected
            or self._flow.write_paused
            or not piece  # an empty chunk would end the body
        ):
            return False
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Write a complete response whose only framing header is `content-length`. False if nothing
        was written: then use `send`.

        uvicorn's `send` searches each header for forbidden characters, which takes 25 us of a short
        response.
        """
        cycle = self._cycle
        framing = [header for header in headers if header[0] in _FRAMING]
        if (
            framing != [(b"content-length", b"%d" % len(body))]
            or cycle.response_started
            or cycle.disconnected
            or self._flow.write_paused
            or not cycle.keep_alive
            or _CLOSE in cycle.scope["headers"]  # until 0.53, uvicorn looks at it itself
            or cycle.access_log
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        parts = [part for header in headers for part in (header[0], b": ", header[1], b"\r\n")]
        if _FORBIDDEN.search(b"".join([part for header in headers for part in header])):
            return False
        self._write(b"".join([_STATUS_LINES[status], self._default_head(), *parts, b"\r\n", body]))
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = cycle.chunked_encoding = False
        cycle.message_event.set()
        cycle.on_response()
        return True

    def _default_head(self) -> bytes:
        headers = self._cycle.default_headers
        known, head = DirectWriter._defaults
        if known is not headers:
            head = b"".join([b"%b: %b\r\n" % header for header in headers])
            DirectWriter._defaults = headers, head
        return head

    def socket(self) -> ChunkedSocket | None:
        """The connection's socket; None with TLS, or if the connection is lost."""
        transport = self._cycle.transport
        if transport.get_extra_info("sslcontext") is not None:
            return None
        raw, protocol = transport.get_extra_info("socket"), transport.get_protocol()
        if raw is None or protocol is None:
            return None
        socket = ChunkedSocket(raw.fileno(), self._idle, self._write)
        protocol.socket = socket  # which closes it with the connection
        return socket

    def drop(self) -> None:
        """Closes the connection of a client that reads too slowly."""
        if (protocol := self._cycle.transport.get_protocol()) is not None:
            protocol.disconnect_slow_client()

    def _idle(self) -> bool:
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (
            cycle.response_complete
            or cycle.disconnected
            or self._flow.write_paused
            or cycle.transport.get_write_buffer_size()
        )


@functools.cache
def is_supported() -> bool:
    """Whether the installed uvicorn has what this uses; logs a warning if not."""
    slower = "each event of a stream is sent through ASGI, which needs more CPU"
    needed = (compatibility.DIRECT_WRITES, compatibility.FLOW)
    return all(compatibility.check(each, otherwise=slower) for each in needed)


def direct_writer(send: Send) -> DirectWriter | None:
    """For the connection of uvicorn's `send`; None for any other `send`."""
    cycle = getattr(send, "__self__", None)
    return DirectWriter(cycle) if isinstance(cycle, RequestResponseCycle) else None
