"""RpcConnections of clients that do not read what gRPC was given for them."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from openai_frontend.kserve.grpc.connections import RpcConnections, address_of
from openai_frontend.kserve.grpc.delivery import Delivery, StreamWrites

PERIOD_S = 100.0


@contextlib.contextmanager
def connected(host: str) -> Iterator[tuple[RpcConnections, socket.socket, str]]:
    """The connections of a server, a client of it, and what gRPC names the client."""
    listener = socket.create_server((host, 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with listener:
        connections = RpcConnections()
        connections.port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", connections.port)) as client:
            accepted, _ = listener.accept()
            with accepted:
                yield connections, client, f"ipv4:127.0.0.1:{client.getsockname()[1]}"


async def periods(loop_clock, count: int) -> None:
    for _ in range(count):
        loop_clock.move_on(PERIOD_S)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_connection_stays_while_other_calls_run(loop_clock):
    """A proxy's other clients may use it; once they do not, it is closed."""
    closed: list[bool] = []
    with connected("::") as (connections, client, peer):
        connections.begin(peer)
        Delivery(connections, peer, PERIOD_S, lambda: closed.append(True))
        await periods(loop_clock, 3)
        stayed = not closed
        connections.end(peer)
        await periods(loop_clock, 1)
        client.settimeout(10)

        assert (stayed, closed, client.recv(1)) == (True, [True], b"")


@pytest.mark.asyncio
async def test_busy_connection_is_closed_in_the_end(loop_clock):
    """An endless call does not keep the memory of another one's response for ever."""
    closed: list[bool] = []
    with connected("::") as (connections, _, peer):
        connections.begin(peer)
        Delivery(connections, peer, PERIOD_S, lambda: closed.append(True))
        await periods(loop_clock, 10)

        assert closed == [True]


@pytest.mark.asyncio
async def test_read_response_keeps_its_connection(loop_clock):
    """The timer ends with the delivery."""
    closed: list[bool] = []
    with connected("::") as (connections, _, peer):
        Delivery(connections, peer, PERIOD_S, lambda: closed.append(True)).end()
        await periods(loop_clock, 2)

        assert not closed


def test_only_connections_of_the_server_are_closed():
    """Another port's connection of a client with that address is not."""
    with connected("::") as (connections, _, peer):
        connections.port += 1

        assert not connections.close(peer)


@pytest.mark.parametrize("peer", ["unix:/a", "unknown"])
def test_no_other_socket_is_closed_for_a_client_without_an_address(peer, monkeypatch):
    """Sockets that listen, or are of another kind, have none either."""
    connections = RpcConnections()
    one, other = socket.socketpair()
    with one, other:
        only = [str(one.fileno())]
        monkeypatch.setattr("openai_frontend.kserve.grpc.connections.os.listdir", lambda _: only)

        assert not connections.close(peer)
        one.send(b"x")
        assert other.recv(1) == b"x"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:5000", ("127.0.0.1", 5000)),
        ("ipv6:%5B::1%5D:5000", ("::1", 5000)),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", ("fe80::1", 5000)),
        ("unix:/a", None),
    ],
)
def test_addresses_of_peers(peer, address):
    """As gRPC names clients."""
    assert address_of(peer) == address


@pytest.mark.asyncio
async def test_write_outlives_the_call(loop_clock):
    """A write that takes too long ends the wait, but goes on; nothing is written after it."""
    written: list[bytes] = []
    begun, read = asyncio.Event(), asyncio.Event()

    async def responses():
        for each in (b"a", b"b", b"c"):
            yield each

    async def write(response: bytes) -> None:
        if response == b"b":
            begun.set()
            await read.wait()
        written.append(response)

    writes = StreamWrites(write, responses(), PERIOD_S)
    finish = asyncio.ensure_future(writes.finish())
    await begun.wait()
    await periods(loop_clock, 2)
    with pytest.raises(TimeoutError):
        await finish
    read.set()
    await writes.task

    assert written == [b"a", b"b"]
