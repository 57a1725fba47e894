import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware import http_protocol
from openai_frontend.middleware.http_protocol import guarded_protocol
from tests.middleware.asgi import echo

LIMIT = 4096
Address = tuple[str, int]


@contextlib.asynccontextmanager
async def served(app: ASGIApp = echo) -> AsyncGenerator[Address, None]:
    """An application behind the guarded protocol, on a free port."""
    config = uvicorn.Config(
        app, port=0, http=guarded_protocol(LIMIT), lifespan="off", log_config=None, ws="none"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[:2]
    finally:
        server.should_exit = True
        await serving


async def exchange(address: Address, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """All that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        with contextlib.suppress(ConnectionError):  # closed by the server while we still write
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


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
async def test_harmless(pieces):
    """Heads within the limits pass, however they are cut, and bodies are no heads."""
    async with served() as address:
        response = await exchange(address, *pieces, pause_s=0.02)

    assert response.startswith(b"HTTP/1.1 200 OK")
    assert b" 431 " not in response


TOO_LARGE = [
    [request(b"x-a: " + b"a" * LIMIT)],
    [request(b"x-a: " + b"a" * 32_000_000)],
    [b"POST /x HTTP/1.1\r\nx-a: ", *[b"a" * 1000] * 100],
    [b"POST /" + b"x" * LIMIT + b" HTTP/1.1\r\n\r\n"],
    [request(*[b"x-%d: 1" % i for i in range(101)])],
    [request(*[b"x-%d: %s" % (i, b"a" * 90) for i in range(60)])],
    [b"POST /x HTTP/1.1\r\n", *[b"x: 1\r\n"] * 2000],
    [request(body=b"b", close=False) + request(b"x-a: " + b"a" * LIMIT)],
]


@pytest.mark.parametrize("pieces", TOO_LARGE, ids=range(len(TOO_LARGE)))
async def test_too_large(pieces):
    """A head over the limit, in one header or in many, is answered 431 and cut off."""
    async with served() as address:
        response = await exchange(address, *pieces)

    refusal = response[response.rindex(b"HTTP/1.1 ") :]
    assert error(refusal) == (431, "request_headers_too_large")


async def test_answer_in_the_making():
    """A refused head ends the connection, and with it the answer to the request before."""
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend([(await receive())["type"], (await receive())["type"]])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async with served(app) as address:
        response = await exchange(address, request(close=False), b"hello\r\n\r\n", pause_s=0.02)

    assert seen == ["http.request", "http.disconnect"]
    assert error(response) == (400, "invalid_http")


async def test_malformed():
    """What is not HTTP gets the error envelope too."""
    async with served() as address:
        response = await exchange(address, b"hello\r\n\r\n")

    assert error(response) == (400, "invalid_http")


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk"


@pytest.mark.parametrize("cut", [1, 40, 120, -20, -3])
async def test_wish_for_another_protocol(cut):
    """A request that would rather be HTTP/2 is answered with its body, however it is cut."""
    wish = request(UPGRADE, body=b"hello", close=False)
    both = wish + request(body=b"world")

    async with served() as address:
        response = await exchange(address, both[:cut], both[cut:], pause_s=0.02)

    assert response.count(b"HTTP/1.1 200 OK") == 2
    assert 0 < response.find(b"hello") < response.find(b"world")


async def test_wish_with_a_chunked_body():
    """A body of chunks is read in the same way."""
    chunks = b"5\r\nhello\r\n0\r\n\r\n"
    lines = [b"POST /x HTTP/1.1", b"host: a", b"transfer-encoding: chunked", UPGRADE]

    wish = b"\r\n".join([*lines, b"", chunks])

    async with served() as address:
        response = await exchange(address, wish, request(), pause_s=0.02)

    assert response.count(b"HTTP/1.1 200 OK") == 2
    assert b"hello" in response


async def test_wish_and_end():
    """The connection ends after the answer where the request says so beside its wish."""
    wish = request(b"connection: upgrade", b"upgrade: websocket", body=b"hello")

    async with served() as address:
        response = await exchange(address, wish)

    assert response.startswith(b"HTTP/1.1 200 OK")
    assert b"hello" in response


async def test_wish_of_an_older_version():
    """HTTP/1.0 stays HTTP/1.0: the connection ends with the answer, though nobody says so."""
    versions = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        versions.append(scope["http_version"])
        await echo(scope, receive, send)

    wish = request(UPGRADE, body=b"hello", close=False).replace(b"HTTP/1.1", b"HTTP/1.0")

    async with served(app) as address:
        response = await exchange(address, wish)

    assert versions == ["1.0"]
    assert b"hello" in response


async def test_many_wishes():
    """A thousand such requests in one write are a thousand answers."""
    wish = request(UPGRADE, body=b"x", close=False)

    async with served() as address:
        response = await exchange(address, wish * 1000 + request())

    assert response.count(b"HTTP/1.1 200 OK") == 1001


async def test_refusals_have_an_id(caplog):
    """A request that is no HTTP has an id too, which the log knows."""
    with caplog.at_level("INFO"):
        async with served() as address:
            response = await exchange(address, b"hello\r\n\r\n")

    _, _, rest = response.partition(b"x-request-id: ")
    assert rest.startswith(b"req_")
    assert rest.split()[0].decode() in caplog.text


@pytest.mark.parametrize("pieces", [[], [b"POST /x HTTP/1.1\r\nx-a: "]])
async def test_slow_head(monkeypatch, pieces):
    """A head that does not come to its end ends the connection, and so does silence."""
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)

    async with served() as address:
        assert await exchange(address, *pieces) == b""


async def test_slow_answer(monkeypatch):
    """The time limit is that of the head, not of the body or the answer."""
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)
    whole = request(body=b"b" * 10)

    async with served() as address:
        response = await exchange(address, whole[:-5], whole[-5:], pause_s=0.15)

    assert response.startswith(b"HTTP/1.1 200 OK")
