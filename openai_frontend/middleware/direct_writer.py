"""A short way for what streams send. Knows uvicorn's own parts, and our protocol."""

from typing import Any

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from openai_frontend.generation import ChunkedSocket


class DirectWriter:
    """Writes pieces of a response's body at once, where nothing is in the way.

    uvicorn's own `send` is a coroutine that gets a dict and looks at all that a response may be: of
    a stream's event that costs 1.5 us more.
    """

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle: Any = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    def __call__(self, piece: bytes) -> bool:
        """False where it has not been written: then `send` knows what to do, or to wait for."""
        cycle = self._cycle
        if (
            not cycle.chunked_encoding  # no other body has pieces; None before it starts
            or cycle.response_complete
            or cycle.disconnected
            or self._flow.write_paused
            or not piece  # it would end the body
        ):
            return False
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def socket(self) -> ChunkedSocket | None:
        """The connection's socket; None where what is written is not what goes over the wire."""
        transport = self._cycle.transport
        if transport.get_extra_info("sslcontext") is not None:
            return None
        raw, protocol = transport.get_extra_info("socket"), transport.get_protocol()
        if raw is None or protocol is None:  # None: the connection is lost
            return None
        socket = ChunkedSocket(raw.fileno(), self._idle, self._write)
        protocol.socket = socket  # it closes the socket for us
        return socket

    def drop(self) -> None:
        """Ends the connection of a client that reads too slowly."""
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


def direct_writer(send: Send) -> DirectWriter | None:
    """The same way as uvicorn's `send`; None for any other."""
    cycle = getattr(send, "__self__", None)
    return DirectWriter(cycle) if isinstance(cycle, RequestResponseCycle) else None
