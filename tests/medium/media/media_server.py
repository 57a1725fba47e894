"""A TLS server on this machine that answers as a test says, and a fetcher that may reach it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trustme

from openai_frontend.media.fetch import Network, internet

HOST = "media.example.com"
CA = trustme.CA()

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class MediaServer:
    """What it answers, and what it has seen."""

    answer: bytes | Script = b""
    port: int = 0
    connections: int = 0  # completed TLS handshakes
    requests: list[bytes] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)  # of SNI
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # a client has gone

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            if isinstance(self.answer, bytes):
                writer.write(self.answer)
                await writer.drain()
            else:
                await self.answer(writer)
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed.set()
            writer.close()


def response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@asynccontextmanager
async def media_server(
    answer: bytes | Script = b"", certificate: str = HOST
) -> AsyncIterator[MediaServer]:
    """Listens on 127.0.0.1, with a certificate for this name."""
    server = MediaServer(answer)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CA.issue_cert(certificate).configure_cert(context)
    context.sni_callback = lambda connection, name, _: server.names.append(name)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server


def network(port: int, *addresses: str, **options: Any) -> Network:
    """Names resolve to these addresses, which are allowed unless `is_allowed` is given."""
    context = ssl.create_default_context()
    CA.configure_trust(context)

    async def resolve(host: str) -> list[str]:
        return list(addresses or ("127.0.0.1",))

    options = {"is_allowed": lambda address: True, "resolve": resolve, **options}
    return Network(transport=internet(context).transport, port=port, **options)
