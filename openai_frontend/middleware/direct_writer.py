"""Writes parts of a streamed body to uvicorn's transport without going through ASGI `send`."""

import functools
from typing import Any

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from openai_frontend import compatibility
from openai_frontend.generation import ChunkedSocket


class DirectWriter:
    """Writes a chunk at once if the transport is ready.

    uvicorn's `send` is a coroutine that takes a dict and handles all kinds of responses: that
    takes 1.5 us more for each event of a stream.
    """

    __slots__ = ("_cycle", "_flow", "_write")

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
