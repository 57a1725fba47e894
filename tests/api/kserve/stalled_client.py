"""A client of gRPC that sends one call over HTTP/2, and takes no response: its windows stay 0."""

import asyncio
import struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_INITIAL_WINDOW_SIZE = 4
_STREAM = 1


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _field(name: bytes, value: bytes) -> bytes:
    """A header as RFC 7541 writes it without its tables."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class StalledClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def calling(cls, address: str, path: str, message: bytes) -> "StalledClient":
        """Connect, and send a whole request."""
        client = cls(*await asyncio.open_connection(*address.split(":")))
        headers = {
            b":method": b"POST", b":scheme": b"http", b":path": path.encode(),
            b":authority": address.encode(), b"content-type": b"application/grpc",
            b"te": b"trailers",
        }  # fmt: skip
        fields = b"".join(_field(*each) for each in headers.items())
        body = struct.pack(">BI", 0, len(message)) + message
        client._writer.write(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, 0))
            + _frame(_HEADERS, _END_HEADERS, _STREAM, fields)
            + _frame(_DATA, _END_STREAM, _STREAM, body)
        )
        return client

    async def closed(self) -> bytes:
        """Wait until the server closes the connection. Return what it sent."""
        received = b""
        try:
            while part := await self._reader.read(65536):
                received += part
        except ConnectionError:
            pass
        self._writer.close()
        return received
