"""A streamed completion over a bare socket: cheap enough for hundreds, and it keeps all bytes."""

import asyncio
import json


class RawStream:
    """One request on its own connection, read until the connection closes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._first = b""

    @classmethod
    async def begun(cls, port: int, model: str, max_tokens: int) -> "RawStream":
        """Send a request and return once its first token has arrived."""
        body = json.dumps(
            {"model": model, "prompt": "a", "stream": True, "max_tokens": max_tokens}
        ).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        stream = cls(reader, writer)
        while b"data: " not in stream._first and (read := await reader.read(65536)):
            stream._first += read
        return stream

    async def rest(self) -> bytes:
        """Return the complete response after the server has closed the connection."""
        try:
            return self._first + await self._reader.read()
        except ConnectionResetError:
            return self._first
        finally:
            self._writer.close()


def tokens(response: bytes) -> int:
    """Count the events of a stream that contain text."""
    return response.count(b'"text":" token"')
