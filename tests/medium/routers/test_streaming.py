"""Streamed responses through ASGI: status, bodies, comments and failures, in order."""

import asyncio
import itertools
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httptools
import httpx
import pytest
import uvloop
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from openai_frontend import text_relay
from openai_frontend.config.settings import Settings
from openai_frontend.errors import RequestCancelled
from openai_frontend.generation import CompletionDelta
from openai_frontend.middleware.direct_writer import TRANSPORT, AsgiSink
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.request_context.context import RequestContext, Transport, current
from openai_frontend.routers.streaming import (
    ReadingPace,
    StreamedResponse,
    StreamLimits,
)
from openai_frontend.sse import KEEP_ALIVE
from openai_frontend.triton import StreamWriter
from tests.examples import scaled
from tests.medium.cli.certificates import Authority
from tests.medium.routers.conftest import served as served_app
from tests.medium.server.test_http_protocol import Address, request, served


class Client:
    """An ASGI `send` that waits while `open` is cleared, as uvicorn's does, before it writes."""

    def __init__(self, *, slow: bool = False) -> None:
        self.open = asyncio.Event()
        if not slow:
            self.open.set()
        self.bodies: list[bytes] = []
        self.statuses: list[int] = []
        self.failure: Exception | None = None
        self.cancelled = 0

    async def send(self, message: Any) -> None:
        try:
            if not self.open.is_set():
                await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        if message["type"] == "http.response.start":
            assert self.bodies == []
            self.statuses.append(message["status"])
        else:
            assert message["type"] == "http.response.body"
            self.bodies.append(message["body"])


def opened(client: Client, limit: int = 1 << 20) -> tuple[StreamWriter, AsgiSink]:
    """A writer whose headers were sent."""
    sink = AsgiSink(client.send)
    writer = StreamWriter(limit, sink.drop)
    sink.open(writer)
    return writer, sink


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_close_cancels_the_send_and_drops_what_waits():
    client = Client(slow=True)
    writer, sink = opened(client)
    writer(b"a")
    writer(b"b")
    await turns()

    writer.close()
    sink.close()
    await turns()
    client.open.set()
    await turns()

    assert (client.bodies, client.cancelled) == ([], 1)
    assert len(asyncio.all_tasks()) == 1


async def test_write_raises_what_an_earlier_send_raised():
    """No later body is sent."""
    client = Client()
    client.failure = OSError("gone")
    writer, _ = opened(client)
    writer(b"a")
    writer(b"b")
    await turns()
    client.failure = None

    with pytest.raises(OSError, match="gone"):
        writer(b"c")
    await turns()
    assert (client.bodies, writer.paused) == ([], False)


async def test_full_buffer_cancels_the_request():
    """The server cannot drop the client, so the request ends as if it had disconnected."""
    writer, _ = opened(Client(slow=True), limit=4)
    writer(b"under way")
    writer(b"abcd")

    with pytest.raises(RequestCancelled):
        writer(b"e")


@settings(max_examples=scaled(100), deadline=None)
@given(
    steps=st.lists(st.sampled_from(["open", "shut", "turn"]) | st.binary(max_size=3)),
    factory=st.sampled_from([asyncio.new_event_loop, uvloop.new_event_loop]),
)
def test_every_byte_is_sent_once_and_in_order(steps, factory):
    """At any speed of the client. A writer that is not paused has sent everything."""

    async def run() -> None:
        client = Client()
        writer, _ = opened(client)
        written = b""
        for step in steps:
            if isinstance(step, bytes):
                writer(step)
                written += step
            elif step == "open":
                client.open.set()
            elif step == "shut":
                client.open.clear()
            else:
                await asyncio.sleep(0)
            assert writer.paused or b"".join(client.bodies) == written
        client.open.set()
        while writer.paused:  # noqa: ASYNC110  a turn each
            await asyncio.sleep(0)
        assert written == b"".join(client.bodies)
        assert writer.body_bytes == len(written)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())


# ---- responses ----


class Stream(StreamedResponse):
    """Its body is what a function writes and returns."""

    def __init__(
        self,
        pump: Callable[["Stream", text_relay.StreamWriter], Awaitable[bytes]],
        *,
        ping_s: float = 0.0,
        scope: Any = None,
    ) -> None:
        super().__init__(StreamLimits(writer=StreamWriter, ping_interval_s=ping_s))
        self._pump = pump
        self.scope = scope

    async def pump(self, writer: text_relay.StreamWriter) -> bytes:
        return await self._pump(self, writer)


async def answer(client: Client, stream: Stream, within_s: float = 30) -> RequestContext:
    """The request's context once the response has ended."""
    context = RequestContext("req_1", Transport(sink=AsgiSink(client.send)))
    current.set(context)

    async def receive() -> Any:
        raise AssertionError

    async with asyncio.timeout(within_s):
        await stream({"type": "http"}, receive, client.send)
    return context


async def writes(stream: Stream, writer: text_relay.StreamWriter) -> bytes:
    stream.start()
    writer(b"a")
    writer(b"b")
    await stream.drained()
    return b"c"


@pytest.mark.parametrize("slow", [False, True])
async def test_status_is_sent_before_the_bodies(slow):
    """Even if it has to wait. The bytes that bypass the middleware are counted."""
    client = Client(slow=slow)
    asyncio.get_running_loop().call_later(0.01, client.open.set)

    context = await answer(client, Stream(writes))

    assert (client.statuses, client.bodies) == ([200], [b"ab", b"c"])
    assert context.streamed_bytes == 2


async def test_failure_before_the_first_data_keeps_its_status():
    async def fails(stream: Stream, writer: text_relay.StreamWriter) -> bytes:
        raise ValueError("no answer")

    client = Client()
    with pytest.raises(ValueError, match="no answer"):
        await answer(client, Stream(fails))
    assert client.statuses == []


@pytest.mark.parametrize("slow", [False, True])
async def test_later_failure_is_the_last_event(slow):
    """After all data, even if the client is slow."""

    async def fails(stream: Stream, writer: text_relay.StreamWriter) -> bytes:
        stream.start()
        writer(b"a")
        raise ValueError("no answer")

    client = Client(slow=slow)
    asyncio.get_running_loop().call_later(0.01, client.open.set)
    await answer(client, Stream(fails))

    assert client.bodies[0] == b"a"
    assert b'"error"' in client.bodies[1]
    assert len(client.bodies) == 2


async def test_failed_send_of_the_status_ends_the_stream():
    """Nothing waits for it."""

    async def endless(stream: Stream, writer: text_relay.StreamWriter) -> bytes:
        stream.start()
        while True:
            writer(b"a")
            await asyncio.sleep(0)

    client = Client()
    client.failure = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        await answer(client, Stream(endless))
    assert client.bodies == []


async def test_source_is_resumed_once_a_slow_client_has_read_everything():
    """What it writes then is sent before the end."""

    async def pump(stream: Stream, writer: text_relay.StreamWriter) -> bytes:
        left = [b"c", b"b"]

        def resume() -> None:
            if left:
                writer(left.pop())

        stream.resume = resume
        stream.start()
        writer(b"a")
        await stream.drained()
        return b"."

    client = Client()
    await answer(client, Stream(pump))

    assert client.bodies == [b"a", b"b", b"c", b"."]


async def test_idle_stream_sends_comments(loop_clock):
    """Also before the first data, and not while data is written or waits."""

    async def pass_time(seconds: float) -> None:
        loop_clock.move_on(seconds)
        await asyncio.sleep(0.001)

    async def pump(stream: Stream, writer: text_relay.StreamWriter) -> bytes:
        while len(client.bodies) < 3:
            await pass_time(10)
        for _ in range(40):
            writer(b"a")
            await pass_time(2.5)
        client.open.clear()
        writer(b"b")
        for _ in range(4):
            await pass_time(10)
        client.open.set()
        await stream.drained()
        return b"c"

    client = Client()
    await answer(client, Stream(pump, ping_s=10), within_s=100_000)

    assert client.bodies[:3] == [KEEP_ALIVE] * 3
    text = b"".join(client.bodies[3:])
    assert text.replace(KEEP_ALIVE, b"") == b"a" * 40 + b"bc"
    assert text.startswith(b"a" * 20)
    assert text.endswith(b"bc")


async def test_failed_comment_ends_the_stream():
    """Although no data comes that would fail. The comments end too."""
    ended = 0

    async def endless(stream: Stream, writer: text_relay.StreamWriter) -> bytes:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1
        raise AssertionError

    client, failures = Client(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    client.failure = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        await answer(client, Stream(endless, ping_s=0.001))

    await asyncio.sleep(0.01)
    assert (ended, failures) == (1, [])


# ---- over sockets ----


async def test_large_first_event_reaches_a_client_that_reads(world_of):
    """Although it exceeds the buffer for slow clients: it only waits for the headers."""
    prompt = "x" * 300_000
    world = await world_of(Settings(stream_buffer_bytes=64 * 1024))
    world.model([[CompletionDelta("a")], [CompletionDelta("", finish_reason="stop")]])
    body = {"model": "fake", "prompt": prompt, "echo": True, "stream": True}

    async with served_app(world) as (_, url), httpx.AsyncClient() as client:
        response = await client.post(f"{url}/v1/completions", json=body)

    *events, done, end = response.text.split("\n\n")
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == prompt + "a"
    assert (done, end) == ("data: [DONE]", "")


Answers = Sequence[Sequence[bytes]]


def bodies(received: bytes) -> list[bytes]:
    """Of each response, as an HTTP client reads them; the last may be incomplete."""
    found: list[bytes] = []

    class Response:
        def on_message_begin(self) -> None:
            found.append(b"")

        def on_body(self, part: bytes) -> None:
            found[-1] += part

    httptools.HttpResponseParser(Response()).feed_data(received)
    return found


async def read_slowly(
    address: Address,
    tls: ssl.SSLContext | None,
    count: int,
    sizes: Sequence[int],
    leaves: int | None,
) -> bytes:
    """What arrives after that many requests, sent at once. The client `leaves` after so many
    bytes; None: it stays.
    """
    client = socket.create_connection(address)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    host = None if tls is None else "localhost"
    reader, writer = await asyncio.open_connection(
        sock=client, ssl=tls, server_hostname=host, limit=65_536
    )
    sent = [request(b"x-n: %d" % at, close=at == count - 1) for at in range(count)]
    writer.write(b"".join(sent))
    received, turn = b"", 0
    try:
        async with asyncio.timeout(60):
            while part := await reader.read(sizes[turn % len(sizes)]):
                received, turn = received + part, turn + 1
                if leaves is not None and len(received) > leaves:
                    break
                await asyncio.sleep(0)
    finally:
        writer.transport.abort()  # the server does not wait for this client if the test fails
    return received


sizes = st.lists(st.integers(2_000, 60_000), min_size=1, max_size=4)
leaving = st.none() | st.integers(0, 400_000)  # bytes
pieces = st.lists(
    st.binary(min_size=1, max_size=9)
    | st.sampled_from([1, 70_000, 400_000]).map(lambda size: b"x" * size),
    max_size=8,
)


class Answering:
    """An app whose responses are `answers`, by the header `x-n` of their requests."""

    def __init__(self) -> None:
        self.answers: Answers = []
        self.endless = False  # the last of them does not end
        self.waited = False  # any of them, for a slow client
        self.running: set[asyncio.Task[Any] | None] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        transport = scope["state"][TRANSPORT].sink._cycle.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        self.running.add(asyncio.current_task())
        try:
            await Stream(self._pump, scope=scope)(scope, receive, send)
        finally:
            self.running.remove(asyncio.current_task())

    async def _pump(self, stream: Stream, writer: text_relay.StreamWriter) -> bytes:
        number = next(int(value) for name, value in stream.scope["headers"] if name == b"x-n")
        for piece in self.answers[number]:
            stream.start()
            await asyncio.sleep(0)  # the headers
            self.waited |= writer(piece)
            if len(piece) % 2:
                await asyncio.sleep(0)
        stream.start()
        if self.endless and number == len(self.answers) - 1:
            await asyncio.Event().wait()
        await stream.drained()
        return b"."

    async def ended(self) -> None:
        """Returns once no response is under way."""
        async with asyncio.timeout(60):
            while self.running:  # noqa: ASYNC110  a turn each
                await asyncio.sleep(0)

    async def cancel(self) -> None:
        """End what a failed test leaves: the server would wait for it."""
        for task in self.running:
            assert task is not None
            task.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_pipelined_streams_arrive_in_order(tmp_path, secure):
    """At any pace of a client, over TLS or not: a response starts when the one before has ended.
    A client that leaves has the beginning of them, and ends an answer that would not end.
    """
    app = Answering()
    file = Authority(tmp_path, "authority").certificate("server") if secure else None
    context = ssl._create_unverified_context() if secure else None  # noqa: S323

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        server = served(RequestId(app), tls=file)
        address = runner.run(server.__aenter__())

        # The first failure ends it: each failing example waits for its timeout.
        @settings(
            max_examples=scaled(15),
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            report_multiple_bugs=False,
        )
        @example([[b"x" * 400_000] * 4], [2_000], None)  # so much that the writer must wait
        @example([[b"x" * 400_000] * 4] * 2, [2_000], 500_000)
        @given(st.lists(pieces, min_size=1, max_size=3), sizes, leaving)
        def check(each: Answers, sizes: Sequence[int], leaves: int | None) -> None:
            app.answers, app.endless = each, leaves is not None
            if leaves is not None:
                leaves = min(leaves, sum(map(len, itertools.chain(*each))))
            received = runner.run(read_slowly(address, context, len(each), sizes, leaves))
            expected, found = [b"".join(parts) + b"." for parts in each], bodies(received)
            if app.endless:
                del expected[len(found) :]
                expected[-1] = expected[-1][: len(found[-1])]
            assert expected == found
            runner.run(app.ended())

        try:
            check()
        finally:
            runner.run(app.cancel())
            runner.run(server.__aexit__(None, None, None))
    assert app.waited


def test_client_that_has_fallen_behind_must_keep_a_pace():
    """A buffer in each timeout, while more than a buffer waits."""
    limits = StreamLimits(writer=StreamWriter, buffer_bytes=100, send_timeout_s=30)
    pace = ReadingPace(limits)

    def deadline_s(waiting: int, written: int, now: float) -> float | None:
        return pace.deadline_s(waiting_bytes=waiting, written_bytes=written, now_s=now)

    assert deadline_s(100, 10, 1) is None
    assert deadline_s(101, 10, 2) == 32
    assert deadline_s(500, 109, 20) == 32  # too little since then
    assert deadline_s(500, 110, 20) == 50
    assert deadline_s(99, 111, 21) is None
    assert deadline_s(101, 111, 60) == 90


async def test_client_beyond_its_deadline_is_dropped():
    async def waits(stream: Stream, writer: text_relay.StreamWriter) -> bytes:
        stream.start()
        writer(b"a")
        await stream.drained_by(asyncio.get_running_loop().time() + 0.01)
        raise AssertionError

    client = Client(slow=True)
    await answer(client, Stream(waits))

    assert client.bodies == []
