"""Direct writes of body chunks, with the real server."""

import asyncio
import os
import re
from typing import Any

import httptools
import pytest
from starlette.types import Receive, Scope, Send

from openai_frontend.middleware import direct_writer as direct_writer_module
from openai_frontend.middleware.direct_writer import TRANSPORT, AsgiSink, DirectWriter, is_supported
from openai_frontend.middleware.request_id import RequestId, WithoutRequestId
from openai_frontend.runtime import compatibility
from openai_frontend.triton import StreamWriter
from tests.medium.server.test_http_protocol import Address, exchange, request, served
from tests.medium.test_compatibility import without

START = {"type": "http.response.start", "status": 200, "headers": []}


def body(response: bytes) -> bytes:
    """As an HTTP client reads it; complete."""
    parts: list[bytes] = []
    complete: list[bool] = []

    class Response:
        def on_body(self, part: bytes) -> None:
            parts.append(part)

        def on_message_complete(self) -> None:
            complete.append(True)

    httptools.HttpResponseParser(Response()).feed_data(response)
    assert complete
    return b"".join(parts)


async def answered(app: Any, *sent: bytes) -> bytes:
    async with served(RequestId(app)) as address:
        return await exchange(address, *(sent or (request(),)))


def opened(scope: Scope) -> StreamWriter:
    """The writer of a response whose headers were sent."""
    direct = scope["state"][TRANSPORT].sink
    writer = StreamWriter(1 << 20, direct.drop)
    direct.open(writer)
    return writer


async def test_chunks_are_written_directly():
    """Before the end, which is ASGI's."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(dict(START))
        writer = opened(scope)
        assert [writer(b"a"), writer(b""), writer(b"b" * 100)] == [False] * 3
        await asyncio.sleep(0.01)  # the transport has written the headers
        writer(b"c")
        writer.close()
        await send({"type": "http.response.body", "body": b"d", "more_body": False})
        assert writer(b"too late") is False

    assert body(await answered(app)) == b"a" + b"b" * 100 + b"cd"


async def test_framework_around_the_application():
    """Its own `send` gets the start of the response, and chunks are written past it. Headers are
    those of the protocol, and each once.
    """
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(dict(START))
        opened(scope)(b"a")
        await send({"type": "http.response.body", "body": b"b"})

    async def framework(scope: Scope, receive: Receive, send: Send) -> None:
        async def wrapped(message: Any) -> None:
            seen.append(message["type"])
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", b"theirs")]
            await send(message)

        await WithoutRequestId(RequestId(app))(scope, receive, wrapped)

    async with served(framework, headers=[("x-served-by", "replica")]) as address:
        response = await exchange(address, request())

    assert body(response) == b"ab"
    assert seen == ["http.response.start", "http.response.body"]
    assert response.count(b"x-request-id") == response.count(b"x-served-by: replica") == 1
    assert b"server: uvicorn" not in response


@pytest.fixture
def responded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each call of `DirectWriter.respond` returned, for the requests of these tests: another
    worker's may look for its own gateway on the port.
    """
    results: list[bool] = []
    respond = DirectWriter.respond

    def recorded(writer: DirectWriter, *arguments: Any) -> bool:
        result = respond(writer, *arguments)
        if writer._cycle.scope["path"] == "/x":
            results.append(result)
        return result

    monkeypatch.setattr(DirectWriter, "respond", recorded)
    return results


@pytest.mark.parametrize(
    ("status", "headers", "text"),
    [
        (200, [], b"text"),
        (404, [(b"content-type", b"application/json"), (b"x-empty", b"")], b"{}"),
        (503, [(b"retry-after", b"1"), (b"x-tab", b"a\tb"), (b"x-bytes", b"\xe9")], b""),
    ],
)
async def test_complete_response_is_written_at_once(responded, status, headers, text):
    """With the bytes that uvicorn sends; it does so where the client asks to close."""
    length = [(b"content-length", b"%d" % len(text))]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**START, "status": status, "headers": [*length, *headers]})
        await send({"type": "http.response.body", "body": text})

    sent = [request(b"x-request-id: same", close=close) for close in (False, True)]
    received = re.sub(rb"processing-ms: \d+", b"", await answered(app, *sent))
    _, direct, slow = received.split(b"HTTP/1.1 ")

    assert responded == [True, False]
    assert direct == slow.replace(b"connection: close\r\n", b"")


@pytest.mark.parametrize(
    ("headers", "pieces"),
    [
        ([(b"content-length", b"2"), (b"connection", b"close")], [b"ab"]),
        ([(b"content-length", b"2"), (b"content-length", b"2")], [b"ab"]),
        ([(b"content-length", b"2"), (b"x", b"a\nb")], [b"ab"]),
        ([(b"content-length", b"3")], [b"ab"]),
        ([(b"content-length", b"2")], [b"a", b"b"]),
    ],
)
async def test_other_responses_are_left_to_uvicorn(responded, headers, pieces):
    """It closes the connection, rejects what must not be sent, or waits for the rest."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**START, "headers": headers})
        for more, piece in zip([*pieces[1:], b""], pieces, strict=True):
            await send({"type": "http.response.body", "body": piece, "more_body": bool(more)})

    await answered(app, request(close=False), request())

    assert True not in responded


async def test_status_without_a_phrase_is_left_to_uvicorn(responded):
    """Python has no phrase for it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**START, "status": 499, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ab"})

    received = await answered(app, request(close=False), request())
    assert received.count(b"HTTP/1.1 499 ") == 2
    assert responded == [False, False]


async def test_failure_after_a_held_start_is_a_500():
    """Nothing has been sent yet."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**START, "headers": [(b"content-length", b"1")]})
        raise ValueError("no body")

    assert (await answered(app)).startswith(b"HTTP/1.1 500 ")


class Writer:
    """Records what the connection does with a writer."""

    def __init__(self) -> None:
        self.opened: dict[str, Any] | None = None
        self.closed: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def open(self, write: Any, buffered: Any, **options: Any) -> None:
        self.opened = options

    def close(self) -> None:
        if not self.closed.done():
            fd = -1 if self.opened is None else self.opened["fd"]
            self.closed.set_result(None if fd < 0 else os.fstat(fd).st_ino)


async def test_writer_is_closed_before_its_descriptor():
    """Which may belong to another connection afterwards."""
    writer, inodes = Writer(), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(dict(START))
        scope["state"][TRANSPORT].sink.open(writer)
        assert writer.opened is not None
        inodes.append(os.fstat(writer.opened["fd"]).st_ino)
        await scope["state"][TRANSPORT].connection_lost

    async with served(RequestId(app)) as address:
        await leave(address)
        assert [await asyncio.wait_for(writer.closed, 30)] == inodes


async def test_rejection_closes_the_writer():
    """Invalid data after a request ends its response."""
    closed: list[bool] = []
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(dict(START))
        writer = opened(scope)
        writer(b"a")
        begun.set()
        await scope["state"][TRANSPORT].connection_lost
        closed.append(writer(b"b") or writer.body_bytes == 1)

    async with served(RequestId(app)) as address:
        response = await exchange(address, request(close=False), begun, b"invalid\r\n\r\n")

    assert closed == [True]
    assert response.endswith(b"1\r\na\r\n")


async def leave(address: Address) -> None:
    """Reads a little, and goes."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request())
    await reader.read(100)
    writer.transport.abort()


async def test_writer_of_a_lost_connection_is_closed():
    """It is never opened."""
    writer, begun = Writer(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        direct = scope["state"][TRANSPORT].sink
        begun.set()
        await scope["state"][TRANSPORT].connection_lost
        await asyncio.sleep(0)  # the transport lets go of its protocol behind it
        direct.open(writer)

    async with served(RequestId(app)) as address:
        _, client = await asyncio.open_connection(*address)
        client.write(request())
        async with asyncio.timeout(30):
            await begun.wait()
        client.transport.abort()
        assert await asyncio.wait_for(writer.closed, 30) is None

    assert writer.opened is None


async def test_http_1_0_has_no_chunks():
    """The end of the connection ends a body of unknown length."""
    written: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        written.append(type(scope["state"][TRANSPORT].sink))
        await send(dict(START))
        for piece in (b"a", b"", b"bc"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"d"})

    head, _, raw = (await answered(app, b"GET / HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")

    assert raw == b"abcd"
    assert b"connection: close" in head
    assert b"transfer-encoding" not in head
    assert written == [AsgiSink]


async def test_http_1_0_has_content_length():
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**START, "headers": [(b"content-length", b"1")]})
        await send({"type": "http.response.body", "body": b"a"})

    response = await answered(app, b"GET / HTTP/1.0\r\n\r\n")

    assert b"content-length: 1\r\n" in response
    assert response.endswith(b"\r\n\r\na")


@pytest.mark.parametrize(
    ("private", "name"),
    [
        (private, name)
        for private in (compatibility.DIRECT_WRITES, compatibility.FLOW)
        for name in private.names
    ],
    ids=str,
)
async def test_body_goes_through_send_if_uvicorn_lacks_a_name(monkeypatch, caplog, private, name):
    """The response is the same, and the log has one line about it."""
    monkeypatch.setattr(direct_writer_module, "is_supported", is_supported.__wrapped__)
    without(monkeypatch, private, name)
    written: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        written.append(type(scope["state"][TRANSPORT].sink))
        await send(dict(START))
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})

    assert body(await answered(app)) == b"ab"
    assert written == [AsgiSink]
    (line,) = caplog.messages
    assert f"has no {name}, so each event of a stream is sent through ASGI" in line
