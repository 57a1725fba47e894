import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware.direct_writer import TRANSPORT
from openai_frontend.server import http2, http_protocol, internal_server
from openai_frontend.server.http_protocol import LimitedHttpProtocol, limited_protocol
from openai_frontend.server.limits import (
    CHECKS,
    ProtocolCounts,
    ProtocolLimits,
    SlowClientDetector,
)
from tests.core.triton.waiting import until
from tests.fast.middleware.asgi import echo
from tests.uvicorn_server import serving

LIMIT = 4096
Address = tuple[str, int]


@pytest.fixture
def lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine too, the server waits until a rejected client has sent everything. Its half
    of the connection is closed at once.
    """
    monkeypatch.setattr(http_protocol, "LINGER_S", 60)


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """All that the server has read."""
    data, read = bytearray(), LimitedHttpProtocol.data_received

    def data_received(protocol: LimitedHttpProtocol, piece: bytes) -> None:
        read(protocol, piece)
        data.extend(piece)

    monkeypatch.setattr(LimitedHttpProtocol, "data_received", data_received)
    return data


@contextlib.asynccontextmanager
async def served(
    app: ASGIApp = echo,
    *,
    counts: ProtocolCounts | None = None,
    headers: Sequence[tuple[str, str]] | None = None,
    request_headers: Sequence[tuple[str, str]] = (),
    tls: Path | None = None,
    **limits: Any,
) -> AsyncGenerator[Address, None]:
    """An application behind the guarded protocol, on a free port; `tls`: a certificate with key."""
    http = limited_protocol(
        ProtocolLimits(**{"max_header_bytes": LIMIT, **limits}),
        counts,
        headers=headers,
        request_headers=request_headers,
    )
    tls_options: dict[str, Any] = {} if tls is None else {"ssl_certfile": tls, "ssl_keyfile": tls}
    async with serving(app, http=http, access_log=False, **tls_options) as (_, address):
        yield address


async def exchange(address: Address, *pieces: bytes | asyncio.Event, pause_s: float = 0.0) -> bytes:
    """Return everything that arrives until the server closes the connection. What follows an event
    is sent once it is set.
    """
    reader, writer = await asyncio.open_connection(*address)
    try:
        with contextlib.suppress(ConnectionError):  # the server closed it while we were writing
            for piece in pieces:
                if isinstance(piece, asyncio.Event):
                    async with asyncio.timeout(60):
                        await piece.wait()
                    continue
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def connected(
    address: Address, received: bytearray
) -> AsyncGenerator[tuple[asyncio.StreamReader, Callable[[bytes], Awaitable[None]]], None]:
    """A connection: a reader, and what sends bytes and returns once the server has read them."""
    reader, writer = await asyncio.open_connection(*address)

    async def send(piece: bytes) -> None:
        before = len(received)
        writer.write(piece)
        await until(lambda: len(received) == before + len(piece))

    try:
        yield reader, send
    finally:
        writer.close()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server closes the connection."""
    async with asyncio.timeout(60):
        return await reader.read()


def request(*headers: bytes, body: bytes = b"", close: bool = True) -> bytes:
    length = b"content-length: %d" % len(body)
    connection = [b"connection: close"] if close else []
    lines = [b"POST /x HTTP/1.1", b"host: a", length, *connection, *headers]
    return b"\r\n".join([*lines, b"", body])


def error(response: bytes) -> tuple[int, str]:
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


BEFORE = request(body=b"b" * 50_000, close=False)  # another request on the same connection

HARMLESS = [
    [request(b"x-a: " + b"a" * (LIMIT - 100))],
    [request(body=b"b" * 100_000)],
    [request(*[b"x-%d: 1" % i for i in range(90)])],
    [request(b"x-a: 1")[:20], request(b"x-a: 1")[20:]],
    [BEFORE + request(b"x-a: 1")],
    [BEFORE[:200], BEFORE[200:] + request()[:9], request()[9:]],
]


@pytest.mark.parametrize("pieces", HARMLESS, ids=range(len(HARMLESS)))
async def test_heads_within_the_limits_pass(pieces):
    """At every split; bodies do not count."""
    async with served() as address:
        response = await exchange(address, *pieces, pause_s=0.02)

    assert response.startswith(b"HTTP/1.1 200 OK")
    assert b" 431 " not in response


TOO_LARGE = [
    [request(b"x-a: " + b"a" * LIMIT)],
    [request(b"x-a: " + b"a" * 32_000_000)],
    [b"POST /x HTTP/1.1\r\nx-a: ", *[b"a" * 1000] * 100],
    [request(*[b"x-%d: 1" % i for i in range(101)])],
    [request(*[b"x-%d: %s" % (i, b"a" * 90) for i in range(60)])],
    [b"POST /x HTTP/1.1\r\n", *[b"x: 1\r\n"] * 2000],
    [request(body=b"b", close=False) + request(b"x-a: " + b"a" * LIMIT)],
]


@pytest.mark.usefixtures("lingers")
@pytest.mark.parametrize("pieces", TOO_LARGE, ids=range(len(TOO_LARGE)))
async def test_head_over_the_limit_is_431(pieces):
    """In one header or in many."""
    async with served() as address:
        response = await exchange(address, *pieces)

    refusal = response[response.rindex(b"HTTP/1.1 ") :]
    assert error(refusal) == (431, "request_headers_too_large")


async def test_rejected_head_cancels_the_running_response():
    seen, begun = [], asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((await receive())["type"])
        begun.set()
        seen.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async with served(app) as address:
        response = await exchange(address, request(close=False), begun, b"hello\r\n\r\n")

    assert seen == ["http.request", "http.disconnect"]
    assert error(response) == (400, "invalid_http")


async def test_disconnect_behind_a_pipelined_request_is_noticed():
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        begun.set()
        ended.set_result((await receive())["type"])

    async with served(app) as address:
        _, writer = await asyncio.open_connection(*address)
        writer.write(request(close=False) * 2)
        await begun.wait()
        writer.transport.abort()
        async with asyncio.timeout(30):
            assert await ended == "http.disconnect"


@pytest.mark.parametrize(("begun", "status"), [(False, b"400"), (True, b"200")])
async def test_a_pipelined_refusal_is_not_written_into_an_answer(begun, status):
    """A refusal replaces an answer that has not started. After it nothing is written, and a request
    that was waiting does not start.
    """
    paths, at_work = [], asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
        at_work.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        if not begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"b"})

    waiting = request(close=False).replace(b"/x", b"/waiting")
    async with served(app) as address:
        response = await exchange(
            address, request(close=False), at_work, waiting + b"hello\r\n\r\n"
        )

    assert paths == ["/x"]
    assert response.startswith(b"HTTP/1.1 " + status)
    assert response.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "headers",
    [
        b"transfer-encoding: gzip, chunked",
        b"Transfer-Encoding: x\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ncontent-length: 5",
    ],
)
async def test_ambiguous_body_framing_is_rejected(headers):
    """A proxy in front may have seen another end of the body."""
    async with served() as address:
        response = await exchange(
            address, b"POST /x HTTP/1.1\r\nhost: a\r\n" + headers + b"\r\n\r\n0\r\n\r\n"
        )

    assert error(response) == (400, "invalid_http")


async def test_malformed_http_gets_the_error_envelope():
    async with served() as address:
        response = await exchange(address, b"hello\r\n\r\n")

    assert error(response) == (400, "invalid_http")


async def test_pipelined_invalid_url_is_400():
    """As for the first request of a connection."""
    async with served() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request(close=False))
        answered = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"CONNECT a:1 HTTP/1.1\r\n\r\n")
        rest = await rest_of(reader)
        writer.close()

    assert answered.startswith(b"HTTP/1.1 200")
    assert error(rest[rest.index(b"HTTP/1.1") :]) == (400, "invalid_http")


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk"


@pytest.mark.parametrize("cut", [1, 40, 120, -20, -3])
async def test_upgrade_is_ignored(cut):
    """The request is answered with its body, at every split."""
    wish = request(UPGRADE, body=b"hello", close=False)
    both = wish + request(body=b"world")

    async with served() as address:
        response = await exchange(address, both[:cut], both[cut:], pause_s=0.02)

    assert response.count(b"HTTP/1.1 200 OK") == 2
    assert 0 < response.find(b"hello") < response.find(b"world")


async def test_upgrade_with_a_chunked_body():
    chunks = b"5\r\nhello\r\n0\r\n\r\n"
    lines = [b"POST /x HTTP/1.1", b"host: a", b"transfer-encoding: chunked", UPGRADE]

    wish = b"\r\n".join([*lines, b"", chunks])

    async with served() as address:
        response = await exchange(address, wish, request(), pause_s=0.02)

    assert response.count(b"HTTP/1.1 200 OK") == 2
    assert b"hello" in response


async def test_upgrade_with_connection_close():
    """The connection closes after the response."""
    wish = request(b"connection: upgrade", b"upgrade: websocket", body=b"hello")

    async with served() as address:
        response = await exchange(address, wish)

    assert response.startswith(b"HTTP/1.1 200 OK")
    assert b"hello" in response


async def test_upgrade_in_http_1_0():
    """The connection closes after the response, even without `Connection: close`."""
    versions = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        versions.append(scope["http_version"])
        await echo(scope, receive, send)

    wish = request(UPGRADE, body=b"hello", close=False).replace(b"HTTP/1.1", b"HTTP/1.0")

    async with served(app) as address:
        response = await exchange(address, wish)

    assert versions == ["1.0"]
    assert b"hello" in response


@pytest.mark.parametrize("version", [b"", b" HTTP/0.9", b" HTTP/2.0", b" HTTP/1.2"])
async def test_other_http_versions_are_400(version):
    """The connection closes."""
    async with served() as address:
        response = await exchange(address, request().replace(b" HTTP/1.1", version) * 2)

    assert error(response) == (400, "invalid_http")
    assert response.count(b"HTTP/1.1 ") == 1


async def test_many_upgrades_in_one_write():
    """A thousand requests get a thousand responses."""
    wish = request(UPGRADE, body=b"x", close=False)

    async with served() as address:
        response = await exchange(address, wish * 1000 + request())

    assert response.count(b"HTTP/1.1 200 OK") == 1001


async def test_malformed_requests_have_an_id(caplog):
    """It is in the log too."""
    with caplog.at_level("INFO"):
        async with served() as address:
            response = await exchange(address, b"hello\r\n\r\n")

    _, _, rest = response.partition(b"x-request-id: ")
    assert rest.startswith(b"req_")
    assert rest.split()[0].decode() in caplog.text


class Counts:
    """Counts the protocol's events."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def slow_client_disconnected(self) -> None:
        self.told.append("reader")

    def timed_out(self, kind: str) -> None:
        self.told.append(kind)

    def rejected(self, model: str, reason: str) -> None:
        self.told.append(f"{model}{reason}")


async def test_idle_connection_is_closed():
    """Without a response."""
    counts = Counts()

    async with served(counts=counts, header_timeout_s=0.05) as address:
        assert await exchange(address) == b""

    assert counts.told == []


async def test_slow_head_is_408(loop_clock, received):
    """Even if it arrives at a steady rate."""
    counts = Counts()

    async with (
        served(counts=counts, header_timeout_s=1000) as address,
        connected(address, received) as (reader, send),
    ):
        await send(b"POST /x HTTP/1.1\r\nx-a: ")
        for _ in range(9):
            loop_clock.move_on(100)
            await send(b"a")
        in_time = list(counts.told)
        loop_clock.move_on(101)
        response = await rest_of(reader)

    assert in_time == []
    assert error(response) == (408, "request_header_timeout")
    assert counts.told == ["header"]


@pytest.mark.parametrize("form", [b"content-length: 1000", b"transfer-encoding: chunked"])
async def test_slow_body_is_408(loop_clock, received, form):
    """The request is cancelled, even if the body arrives at a steady rate."""
    seen: list[str] = []
    counts = Counts()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while not seen or seen[-1] == "http.request":
            seen.append((await receive())["type"])

    head = b"POST /x HTTP/1.1\r\nhost: a\r\n%b\r\n\r\n" % form

    async with (
        served(app, counts=counts, body_timeout_s=1000) as address,
        connected(address, received) as (reader, send),
    ):
        await send(head)
        for _ in range(9):
            loop_clock.move_on(100)
            await send(b"1\r\na\r\n")
        in_time = list(counts.told)
        loop_clock.move_on(101)
        response = await rest_of(reader)

    assert in_time == []
    assert error(response) == (408, "request_body_timeout")
    assert (seen[-1], counts.told) == ("http.disconnect", ["body"])


async def test_slow_body_after_the_response():
    """The connection closes: a second response would seem to answer the next request."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"enough"})

    head = b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n"

    async with served(app, body_timeout_s=0.1) as address:
        response = await exchange(address, head)

    assert response.count(b"HTTP/1.1 ") == 1


async def test_connection_with_only_empty_lines_is_closed(loop_clock, received):
    async with (
        served(header_timeout_s=1000) as address,
        connected(address, received) as (reader, send),
    ):
        await send(request(close=False))
        answered = await reader.readuntil(b"\r\n\r\n")
        await send(b"\r\n")
        loop_clock.move_on(1001)
        await rest_of(reader)

    assert answered.startswith(b"HTTP/1.1 200 OK")


async def test_slow_response_has_no_head_timeout(loop_clock, received):
    whole = request(body=b"b" * 10)

    async with (
        served(header_timeout_s=1000, body_timeout_s=10_000) as address,
        connected(address, received) as (reader, send),
    ):
        await send(whole[:-5])
        loop_clock.move_on(3000)
        await asyncio.sleep(0.01)  # a timer that is due runs first
        await send(whole[-5:])
        response = await rest_of(reader)

    assert response.startswith(b"HTTP/1.1 200 OK")


def chunked(count: int, *after: bytes) -> bytes:
    """A request whose body has this many chunks, followed by these lines."""
    head = b"POST /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"1\r\na\r\n" * count + b"\r\n".join([b"0", *after, b"", b""])


async def test_chunk_limit(monkeypatch):
    """One chunk more than the limit is a 413."""
    monkeypatch.setattr("openai_frontend.server.limits.MAX_BODY_CHUNKS", 50)
    async with served() as address:
        answered = await exchange(address, chunked(49))
        refused = await exchange(address, chunked(51))

    assert b"a" * 49 in answered
    assert error(refused) == (413, "request_too_large")


async def test_trailers_are_not_headers():
    """A proxy does not check them."""
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await echo(scope, receive, send)
        seen.extend(name for name, _ in scope["headers"])

    async with served(app) as address:
        response = await exchange(address, chunked(1, b"authorization: Bearer x"))

    assert response.endswith(b"1\r\na\r\n0\r\n\r\n")
    assert seen == [b"host", b"connection", b"transfer-encoding"]


async def test_trailers_count_as_headers():
    async with served() as address:
        response = await exchange(address, chunked(1, *[b"x: " + b"a" * 90] * 100))

    assert error(response) == (431, "request_headers_too_large")


async def test_long_url_is_414():
    """Over 8 KiB, even if headers may be larger."""
    async with served(max_header_bytes=65536) as address:
        response = await exchange(address, b"GET /" + b"x" * 8192 + b" HTTP/1.1\r\n\r\n")

    assert error(response) == (414, "request_url_too_long")


async def test_connections_over_the_limit_get_503():
    """Health checks still pass. Connections over the limit by more than a tenth get no answer."""
    counts = Counts()
    health = b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n"

    async with served(counts=counts, max_connections=2) as address:
        open_ones = [await asyncio.open_connection(*address) for _ in range(2)]
        await asyncio.sleep(0.05)
        refused = await exchange(address, request(close=False))
        reader, writer = await asyncio.open_connection(*address)
        writer.write(health)
        healthy = await reader.readuntil(b"\r\n\r\n")
        beyond = await exchange(address, health)
        for _, each in [*open_ones, (reader, writer)]:
            each.close()
        await asyncio.sleep(0.05)
        again = await exchange(address, request())

    assert error(refused) == (503, "server_overloaded")
    assert (b"\r\nretry-after: 1\r\n" in refused, b"\r\nconnection: close\r\n" in refused) == (
        True,
        True,
    )
    assert healthy.startswith(b"HTTP/1.1 200 OK")
    assert beyond == b""
    assert again.startswith(b"HTTP/1.1 200 OK")
    assert counts.told == ["connections"] * 3


PIECE = b"p" * 100_000


async def dropped(app: ASGIApp, sent: bytes, *, read: int = 0) -> Counts:
    """A client that reads part of an answer, then nothing until its time limit passes."""
    counts = Counts()
    async with served(app, counts=counts, send_timeout_s=0.2) as address:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        with client:
            await loop.sock_connect(client, address)
            await loop.sock_sendall(client, sent)
            left = read
            # On a busy machine the time limit may pass during this already.
            with contextlib.suppress(ConnectionError):
                while left > 0 and (data := await loop.sock_recv(client, min(left, 4096))):
                    left -= len(data)
            await until(lambda: counts.told != [])
            await asyncio.sleep(0.05)
    return counts


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while not scope["state"][TRANSPORT].connection_lost.done():
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        await asyncio.sleep(0)


async def huge(scope: Scope, receive: Receive, send: Send) -> None:
    """An answer that is written in one piece."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": PIECE * 200})


@pytest.mark.parametrize("app", [endless, huge])
@pytest.mark.parametrize("close", [True, False])
async def test_client_that_does_not_read_is_disconnected(app, close):
    """During the response, and after it was complete."""
    counts = await dropped(app, request(close=close), read=50_000)

    assert counts.told == ["reader"]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[SlowClientDetector]:
    """The detector, once for each look at its client."""
    looks: list[SlowClientDetector] = []
    check = SlowClientDetector._check

    def recorded(detector: SlowClientDetector) -> None:
        check(detector)
        looks.append(detector)

    monkeypatch.setattr(SlowClientDetector, "_check", recorded)
    return looks


async def test_slow_reader_stays_connected(loop_clock, checked):
    """If it reads anything, the timeout starts again."""
    counts = Counts()

    async def look() -> None:
        before = len(checked)
        loop_clock.move_on(1000 / CHECKS)
        await until(lambda: len(checked) > before)

    async with served(huge, counts=counts, send_timeout_s=1000) as address:
        reader, writer = await asyncio.open_connection(*address, limit=4096)
        writer.write(request())
        received = len(await reader.read(1000))
        await look()
        for _ in range(5):
            buffered = checked[0]._transport.get_write_buffer_size()
            while checked[0]._transport.get_write_buffer_size() == buffered:
                received += len(await reader.read(100_000))
                await asyncio.sleep(0)
            for _ in range(CHECKS - 1):
                await look()
        received += len(await reader.read())
        writer.close()

    assert received > len(PIECE) * 200
    assert counts.told == []


async def test_framework_finds_its_request_headers():
    """After the client's, so that the last one of a name is not the client's."""
    seen: list[list[tuple[bytes, bytes]]] = []

    async def framework(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append([*scope["headers"]])
        await echo(scope, receive, send)

    given = request(b"x-watch: ?0", close=False) + request(b"x-watch: ?0")
    async with served(framework, headers=[], request_headers=[("x-watch", "?1")]) as address:
        await exchange(address, given)

    assert [headers[-2:] for headers in seen] == [[(b"x-watch", b"?0"), (b"x-watch", b"?1")]] * 2


async def test_upgraded_request_has_the_framework_headers_once():
    """It is parsed twice, because an upgrade that is not supported is ignored."""
    seen: list[list[bytes]] = []

    async def framework(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append([value for name, value in scope["headers"] if name == b"x-watch"])
        await echo(scope, receive, send)

    given = request(b"upgrade: h2c", b"connection: upgrade", b"http2-settings: AAA", close=False)
    async with served(framework, headers=[], request_headers=[("x-watch", "?1")]) as address:
        await exchange(address, given + request())

    assert seen == [[b"?1"], [b"?1"]]


async def test_server_exits_without_waiting_for_the_next_date(monkeypatch):
    monkeypatch.setattr(internal_server, "_DATE_EVERY_S", 3600)

    async with asyncio.timeout(60), served() as address:
        response = await exchange(address, request())

    assert response.startswith(b"HTTP/1.1 200 OK")


async def test_date_changes_without_requests(monkeypatch):
    monkeypatch.setattr(internal_server, "_DATE_EVERY_S", 0.05)

    async with served() as address:
        first = await exchange(address, request())
        await asyncio.sleep(1.2)
        second = await exchange(address, request())

    dates = [re.findall(rb"^date: (.+)\r$", each, re.MULTILINE) for each in (first, second)]
    assert [len(each) for each in dates] == [1, 1]
    assert dates[0] != dates[1]


@pytest.mark.parametrize("cut", range(1, 20, 3))
async def test_http2_is_refused_however_its_first_bytes_arrive(cut):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM"  # a client may also wait for the answer before the rest

    async with served() as address:
        answer = await exchange(address, preface[:cut], preface[cut:], pause_s=0.02)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"HTTP/2 and gRPC are not served on this port." in answer


async def test_http2_client_learns_why_it_is_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gRPC client connects again and again: the log has one line, which names the cause."""
    monkeypatch.setattr(LimitedHttpProtocol, "http2_log", http2.Http2Log())
    async with served() as address:
        answers = [await exchange(address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") for _ in range(3)]

    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"HTTP/2 and gRPC are not served on this port." in answer
    [line] = [each for each in caplog.messages if "gRPC" in each]
    assert line.startswith("HTTP/2 connection refused, client=127.0.0.1: this port serves HTTP/1.1")
    assert "Invalid HTTP request received." not in caplog.messages


@pytest.mark.parametrize("value", [b"secret", b" \t secret", b"secret \t ", b"a b\t"])
async def test_whitespace_around_a_header_is_not_part_of_its_value(value):
    """A key or a secret with a space behind it is the same key."""
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(dict(scope["headers"])[b"x-secret"])
        await echo(scope, receive, send)

    async with served(app) as address:
        head = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Secret:" + value
        await exchange(address, head + b"\r\n\r\n")

    assert seen == [value.strip()]
