"""Writes responses to uvicorn's transport without ASGI's `send`, or through it."""

import asyncio
import functools
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Protocol

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from openai_frontend.errors import RequestCancelled, caught
from openai_frontend.runtime import compatibility
from openai_frontend.text_relay import StreamWriter

Headers = Sequence[tuple[bytes, bytes]]

# Characters that end a header or that RFC 9110 forbids in one
_FORBIDDEN = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_STATUS_LINES = {
    each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus
}
_CLOSE = (b"connection", b"close")
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding"})


class Connection(Protocol):
    """The server's protocol object of one connection."""

    # Writer of the current stream: the connection pauses, resumes and closes it
    stream_writer: StreamWriter | None

    def disconnect_slow_client(self) -> None:
        """Aborts the connection, with all data in its buffer."""

    def close_incomplete(self) -> None:
        """Closes the connection once the client has what was written."""


class DirectWriter:
    """Writes the response to one request past ASGI.

    uvicorn's `send` is a coroutine that takes a dict and handles all kinds of responses: that
    takes 1.5 us more for each event of a stream.
    """

    __slots__ = ("_connection", "_cycle", "_flow")

    # uvicorn's headers of every response, which it replaces each second, as they are and as bytes
    _defaults: ClassVar[tuple[Headers, bytes]] = ((), b"")

    def __init__(self, cycle: RequestResponseCycle, connection: Connection) -> None:
        self._cycle: Any = cycle
        self._flow = cycle.flow
        self._connection = connection

    def bypasses(self, send: Send) -> bool:
        """Whether the server's `send` is this one, not that of a framework around it."""
        return bool(send == self._cycle.send)

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Write a complete response whose only framing header is `content-length`. False if nothing
        was written: then use `send`.

        uvicorn's `send` searches each header for forbidden characters, which takes 25 us of a short
        response.
        """
        cycle = self._cycle
        status_line = _STATUS_LINES.get(status)
        if (
            status_line is None
            or cycle.response_started
            or cycle.disconnected
            or self._flow.write_paused
            or not cycle.keep_alive
            or _CLOSE in cycle.scope["headers"]  # until 0.53, uvicorn looks at it itself
            or cycle.access_log
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        length = (b"content-length", b"%d" % len(body))
        head, framing = [status_line, self._default_head()], 0
        checked: list[bytes] = []
        for header in headers:
            name, value = header
            if name in _FRAMING:
                if header != length:
                    return False
                framing += 1
            head += name, b": ", value, b"\r\n"
            checked += header
        if framing != 1 or _FORBIDDEN.search(b"".join(checked)):
            return False
        head += b"\r\n", body
        cycle.transport.write(b"".join(head))
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

    def drop(self) -> None:
        """Closes the connection of a client that reads too slowly."""
        self._connection.disconnect_slow_client()

    def truncate(self) -> bool:
        """Closes the connection before the end of the response."""
        self._connection.close_incomplete()
        return True

    def close(self) -> None:
        """The response is written."""
        self._connection.stream_writer = None

    def open(self, writer: StreamWriter) -> None:
        """Lets `writer` write the body of the response, whose headers were sent. With TLS, only the
        transport can write to the socket.
        """
        if self._cycle.disconnected:
            writer.close()
            return
        transport = self._cycle.transport
        is_tls = transport.get_extra_info("sslcontext") is not None
        socket = None if is_tls else transport.get_extra_info("socket")
        self._connection.stream_writer = writer
        writer.open(
            transport.write,
            transport.get_write_buffer_size,
            fd=-1 if socket is None else socket.fileno(),
            paused=self._flow.write_paused,
        )


# The key of the request's `Transport` in the state of the ASGI scope, from our server
TRANSPORT = "transport"


@functools.cache
def is_supported() -> bool:
    """Whether the installed uvicorn has what this uses; logs a warning if not."""
    slower = "each event of a stream is sent through ASGI, which needs more CPU"
    needed = (compatibility.DIRECT_WRITES, compatibility.FLOW)
    return all(compatibility.check(each, otherwise=slower) for each in needed)


class AsgiSink:
    """ASGI's `send`, for servers other than ours and clients of HTTP/1.0. Sends one message at a
    time; what comes meanwhile waits in the writer.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sending: asyncio.Task[None] | None = None

    def open(self, writer: StreamWriter) -> None:
        self._writer = writer
        writer.open(self._write, int, chunked=False)

    def drop(self) -> None:
        """The server cannot disconnect the client, so the request is cancelled."""
        raise RequestCancelled("The client reads too slowly.")

    def truncate(self) -> bool:
        """ASGI has no message for it."""
        return False

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    def _write(self, body: bytes) -> None:
        self._writer.pause()
        self._sending = asyncio.get_running_loop().create_task(self._send_body(body))

    async def _send_body(self, body: bytes) -> None:
        message = {"type": "http.response.body", "body": body, "more_body": True}
        with caught(self._writer.close):  # the next write raises the failure
            await self._send(message)
        self._writer.resume()
