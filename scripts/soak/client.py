"""The client of the scenarios: httpx for normal requests, bare sockets to misbehave."""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx

from tests.api.kserve.grpc_client import WINDOW, RpcClient
from tests.gateway_process import GatewayProcess

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST and drops unsent data


class Unexpected(Exception):
    """An answer that the scenario did not expect; the text is the kind of error."""


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Unexpected(f"{what}: {str(found)[:80]!r}")


class Client:
    """Shared by all scenarios of a soak."""

    def __init__(
        self, gateway: GatewayProcess, repository: Path, *, clients: int, grpc_port: int
    ) -> None:
        self.gateway = gateway
        self.repository = repository
        self.generation = 0  # of the model that is rewritten
        self.changing = asyncio.Lock()  # allows one change of the models at a time
        self.killed: Counter[str] = Counter()  # or stopped: "stubs", "engines"
        limits = httpx.Limits(max_connections=4 * clients, max_keepalive_connections=clients)
        self._rpc = RpcClient(grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}", WINDOW))
        self._http = httpx.AsyncClient(base_url=gateway.url, timeout=120, limits=limits)

    @property
    def rpc(self) -> RpcClient:
        """The client of KServe's protocol over gRPC: one connection for all scenarios."""
        self._rpc.calls.clear()
        return self._rpc

    async def post(self, path: str, expected: int = 200, **body: Any) -> Any:
        """Return the answer's JSON."""
        response = await self._http.post(path, json=body)
        return self._checked(response, expected)

    async def send(self, path: str, content: bytes, expected: int, **headers: str) -> Any:
        """Send these bytes unchanged."""
        response = await self._http.post(path, content=content, headers=headers)
        return self._checked(response, expected)

    async def send_binary(self, path: str, head: bytes, tensors: bytes) -> bytes:
        """Send tensors after their JSON. Returns those of the answer."""
        headers = {"inference-header-content-length": str(len(head))}
        response = await self._http.post(path, content=head + tensors, headers=headers)
        self._checked(response, 200)
        return response.content[int(response.headers["inference-header-content-length"]) :]

    async def upload(self, path: str, file: bytes, expected: int = 200, **fields: str) -> Any:
        """Send a form with a file."""
        response = await self._http.post(path, files={"file": file}, data=fields)
        return self._checked(response, expected)

    async def get(self, path: str, expected: int = 200) -> Any:
        return self._checked(await self._http.get(path), expected)

    def _checked(self, response: httpx.Response, expected: int) -> Any:
        if response.status_code != expected:
            raise Unexpected(f"{response.status_code} {_code(response)}")
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return response.json() if is_json else response.text

    @asynccontextmanager
    async def stream(self, path: str, **body: Any) -> AsyncIterator[AsyncIterator[str]]:
        """Yield the data of the events, one by one; leaving early closes the connection."""
        async with self._http.stream("POST", path, json={**body, "stream": True}) as response:
            if response.status_code != 200:
                await response.aread()
                raise Unexpected(f"{response.status_code} {_code(response)}")
            yield _events(response)

    @asynccontextmanager
    async def raw_stream(self, **body: Any) -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
        """Yield a streamed completion on its own socket after its first event; leaving resets the
        connection.
        """
        request = self.request("/v1/completions", json={**body, "stream": True})
        async with self._raw() as (reader, writer):
            writer.write(_as_sent(request))
            await reader.readuntil(b"data: ")
            yield reader, writer

    async def abandon(self, request: httpx.Request, *, sent: float, after_s: float) -> None:
        """Send this part of a request, from 0 to 1, and reset its connection after a time, whatever
        has come back.
        """
        data = _as_sent(request)
        async with self._raw() as (_, writer):
            writer.write(data[: int(sent * len(data))])
            with contextlib.suppress(TimeoutError, ConnectionError):  # a refusal closes it too
                async with asyncio.timeout(after_s):
                    await writer.drain()
                    await asyncio.Event().wait()

    def request(self, path: str, **content: Any) -> httpx.Request:
        """Return a request with httpx's `json`, or `files` and `data`."""
        return self._http.build_request("POST", path, **content)

    @asynccontextmanager
    async def _raw(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Yield a connection of its own; leaving resets it."""
        connection = socket.create_connection(("127.0.0.1", self.gateway.port))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def close(self) -> None:
        await self._http.aclose()
        await self._rpc.channel.close()


def _as_sent(request: httpx.Request) -> bytes:
    """The bytes of a request in HTTP/1.1."""
    lines = [f"{name}: {value}\r\n" for name, value in request.headers.items()]
    head = f"{request.method} {request.url.path} HTTP/1.1\r\n{''.join(lines)}\r\n"
    return head.encode() + request.read()


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


def _code(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "without an envelope"
