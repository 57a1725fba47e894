"""Prefill servers behind a name: a peer for each address, looked up again and again."""

import asyncio
import socket
import ssl
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from openai_frontend.models import prefill_peers
from openai_frontend.models.prefill_peers import PrefillPeers
from schemas.transfer import PrefillRequest
from tests.core.triton.waiting import until

NAME = "prefill.llm.svc"
LOCAL = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


class Names:
    """`socket.getaddrinfo` with one name, whose addresses a test changes."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.lookups = 0
        self.answering = threading.Event()
        self.answering.set()
        self._ask = socket.getaddrinfo

    def __call__(self, host: Any, port: Any, *args: Any, **options: Any) -> list[Any]:
        if host != NAME:
            return self._ask(host, port, *args, **options)
        self.lookups += 1
        self.answering.wait(120)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [each for ip in self.addresses for each in self._ask(ip, port, *args, **options)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names()
    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(prefill_peers, "_RESOLVE_EVERY_S", 0.05)
    monkeypatch.setattr(prefill_peers, "_CONNECT_TIMEOUT_S", 30)  # for a busy machine
    return found


class Servers:
    """Prefill servers on one port of several addresses."""

    def __init__(self) -> None:
        self.port = 0
        self.heads: dict[str, list[str]] = defaultdict(list)  # of requests, by address
        self.handlers: set[Any] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.handlers.add(asyncio.current_task())
        address = writer.get_extra_info("sockname")[0]
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                self.heads[address].append(head)
                length = head.partition("content-length: ")[2].partition("\r\n")[0] or "0"
                await reader.readexactly(int(length))
                status = 503 if head.startswith("post") else 200
                writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % status)


@asynccontextmanager
async def listening(tls: ssl.SSLContext | None = None) -> AsyncIterator[Servers]:
    servers = Servers()
    first = await asyncio.start_server(servers.answer, LOCAL[0], 0, ssl=tls)
    servers.port = first.sockets[0].getsockname()[1]
    rest = [
        await asyncio.start_server(servers.answer, ip, servers.port, ssl=tls) for ip in LOCAL[1:]
    ]
    yield servers
    for each in (first, *rest):
        each.close()
    for handler in servers.handlers:
        handler.cancel()
    if servers.handlers:
        await asyncio.wait(servers.handlers)


@asynccontextmanager
async def watched(*urls: str) -> AsyncIterator[PrefillPeers]:
    peers = PrefillPeers(urls, "sk-key", timeout_s=30)
    watching = asyncio.create_task(peers.watch())
    yield peers
    watching.cancel()
    await asyncio.wait([watching])
    await peers.close()


def healthy(peers: PrefillPeers) -> list[str]:
    return [peer.url for peer in peers.peers if peer.healthy]


async def test_name_has_a_server_at_each_address(names: Names) -> None:
    """The one with the fewest requests is asked: with the name as the host, and the key. A router
    names them all by the name.
    """
    names.addresses = LOCAL[:2]
    request = PrefillRequest(model="demo", prompt_token_ids=[1])
    async with listening() as servers, watched(f"http://{NAME}:{servers.port}") as peers:
        urls = [f"http://{ip}:{servers.port}" for ip in LOCAL[:2]]
        await until(lambda: healthy(peers) == urls)
        peers.peers[0].running = 1
        chosen = peers.choose(f"{NAME}:{servers.port}")
        assert chosen is peers.peers[1]
        with pytest.raises(prefill_peers.PrefillFailed, match="peer_refused"):
            await peers.prefill(chosen, request)

    for ip in LOCAL[:2]:
        for head in servers.heads[ip]:
            assert f"host: {NAME}:{servers.port}\r\n" in head
            assert "authorization: bearer sk-key\r\n" in head
    asked = [ip for ip in LOCAL if any(each.startswith("post") for each in servers.heads[ip])]
    assert asked == [LOCAL[1]]


async def test_servers_come_and_go(names: Names) -> None:
    """One that stays keeps its state; without an answer to a lookup, all do."""
    names.addresses = LOCAL[:2]
    async with listening() as servers, watched(f"http://{NAME}:{servers.port}") as peers:
        await until(lambda: len(healthy(peers)) == 2)
        kept = peers.peers[1]
        names.addresses = LOCAL[1:]
        await until(lambda: healthy(peers) == [f"http://{ip}:{servers.port}" for ip in LOCAL[1:]])
        assert peers.peers[0] is kept

        names.addresses, before = [], list(peers.peers)
        lookups = names.lookups
        await until(lambda: names.lookups > lookups + 2)
        assert peers.peers == before
        assert len(healthy(peers)) == 2


async def test_lookup_that_hangs_delays_nothing_else(names: Names) -> None:
    """It runs in one thread, and the other servers are asked. Addresses are not looked up."""
    names.answering.clear()
    async with listening() as servers:
        known = f"http://{LOCAL[2]}:{servers.port}"
        async with watched(f"http://{NAME}:{servers.port}", known) as peers:
            await until(lambda: healthy(peers) == [known])
            await asyncio.sleep(0.2)  # four periods
            assert names.lookups == 1
        names.answering.set()


async def test_most_servers_behind_a_name(names: Names, caplog: pytest.LogCaptureFixture) -> None:
    """More are not probed, and the log says so once."""
    names.addresses = [f"127.0.1.{number}" for number in range(100)]
    async with watched(f"http://{NAME}:1") as peers:
        await until(lambda: names.lookups > 2)
        assert len(peers.peers) == 64
    messages = [each.getMessage() for each in caplog.records if "too many" in each.getMessage()]
    assert messages == [
        f"prefill servers behind one name are too many: url=http://{NAME}:1 addresses=100 used=64"
    ]


async def test_certificate_is_that_of_the_name(names: Names, tmp_path: Path) -> None:
    """Although the connection is to an address."""
    authority = trustme.CA()
    for name, up in ((NAME, 2), ("other.llm.svc", 0)):
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(name).configure_cert(server)
        client = ssl.create_default_context()
        authority.configure_trust(client)
        names.addresses, names.lookups = LOCAL[:2], 0
        async with listening(server) as servers:
            peers = PrefillPeers([f"https://{NAME}:{servers.port}"], "sk-key", timeout_s=30)
            peers._client = httpx.AsyncClient(verify=client, trust_env=False)
            watching = asyncio.create_task(peers.watch())
            await until(lambda: len(healthy(peers)) == up and names.lookups > 4)  # noqa: B023
            watching.cancel()
            await asyncio.wait([watching])
            await peers.close()
            assert bool(servers.heads) is (up > 0)
