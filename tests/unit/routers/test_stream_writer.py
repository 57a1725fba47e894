"""StreamWriter sends bodies in order and waits for slow clients."""

import asyncio
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.errors import RequestCancelled
from openai_frontend.generation import ChunkedSocket
from openai_frontend.routers.streaming import StreamWriter


class Client:
    """An ASGI `send` that waits while `open` is cleared, as uvicorn's does, before it writes."""

    def __init__(self, *, slow: bool = False) -> None:
        self.open = asyncio.Event()
        if not slow:
            self.open.set()
        self.bodies: list[bytes] = []
        self.failure: Exception | None = None
        self.cancelled = 0

    async def send(self, message: Any) -> None:
        assert set(message) == {"type", "body", "more_body"}
        assert (message["type"], message["more_body"]) == ("http.response.body", True)
        try:
            if not self.open.is_set():
                await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        self.bodies.append(message["body"])


class Drains:
    """Records what had been sent at each call of `on_drained`."""

    def __init__(self, writer: StreamWriter, client: Client) -> None:
        self.sent: list[bytes] = []
        writer.on_drained = lambda: self.sent.append(b"".join(client.bodies))


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_write_sends_the_body_before_it_returns():
    """If the client is fast, this takes no iteration of the event loop."""
    client = Client()
    writer = StreamWriter(client.send)
    drains = Drains(writer, client)

    assert [writer.write(b"a"), writer.write(b"b")] == [False, False]
    assert client.bodies == [b"a", b"b"]
    await writer.drained()
    await turns()
    assert drains.sent == []


async def test_callback_outside_a_task_can_write():
    client, done = Client(), asyncio.Event()
    writer = StreamWriter(client.send)

    def callback() -> None:
        assert asyncio.current_task() is None
        writer.write(b"a")
        done.set()

    asyncio.get_running_loop().call_soon(callback)
    await done.wait()

    assert client.bodies == [b"a"]


async def test_bodies_for_a_slow_client_are_joined():
    """`write` returns True while the client is slow. Bodies written meanwhile are sent as one."""
    client = Client(slow=True)
    writer = StreamWriter(client.send)
    drains = Drains(writer, client)

    assert [writer.write(body) for body in (b"a", b"b", b"c")] == [True, True, True]
    await turns()
    assert (client.bodies, drains.sent) == ([], [])
    client.open.set()
    await writer.drained()

    assert (client.bodies, drains.sent) == ([b"a", b"bc"], [b"abc"])
    assert writer.write(b"d") is False
    assert b"".join(client.bodies) == b"abcd"
    await turns()
    assert drains.sent == [b"abc"]


async def test_slow_client_is_drained_once_everything_is_sent():
    """The client may be slow again for each body."""
    client = Client(slow=True)
    writer = StreamWriter(client.send)
    drains = Drains(writer, client)
    writer.write(b"a")
    writer.write(b"b")

    client.open.set()
    asyncio.get_running_loop().call_soon(client.open.clear)  # before the second body
    await turns()
    client.open.clear()
    writer.write(b"c")
    await turns()
    client.open.set()
    await writer.drained()

    assert b"".join(client.bodies) == b"abc"
    assert drains.sent[-1] == b"abc"


async def test_body_written_in_on_drained_is_sent_last():
    """`drained` waits for it too."""
    client = Client(slow=True)
    writer = StreamWriter(client.send)
    left = [b"c", b"b"]

    def resume() -> None:
        if left:
            client.open.clear()
            writer.write(left.pop())
            asyncio.get_running_loop().call_soon(client.open.set)

    writer.on_drained = resume
    writer.write(b"a")
    client.open.set()
    async with asyncio.timeout(5):
        await writer.drained()

    assert client.bodies == [b"a", b"b", b"c"]


async def test_drained_returns_once_everything_is_sent():
    client = Client(slow=True)
    writer = StreamWriter(client.send)
    writer.write(b"a")
    waiting = asyncio.create_task(writer.drained())
    await turns()

    assert not waiting.done()
    client.open.set()
    await waiting
    assert client.bodies == [b"a"]


async def test_cancelling_drained_does_not_cancel_the_send():
    client = Client(slow=True)
    writer = StreamWriter(client.send)
    writer.write(b"a")
    waiting = asyncio.create_task(writer.drained())
    await turns()

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    client.open.set()
    await writer.drained()

    assert (client.bodies, client.cancelled) == ([b"a"], 0)


@pytest.mark.parametrize("begun", [False, True])
async def test_close_drops_the_buffer_and_cancels_the_send(begun):
    """Whether or not the event loop has run since the write."""
    client = Client(slow=True)
    writer = StreamWriter(client.send)
    drains = Drains(writer, client)
    writer.write(b"a")
    writer.write(b"b")
    if begun:
        await turns()

    writer.close()
    await turns()
    client.open.set()
    await turns()

    assert (client.bodies, drains.sent) == ([], [])
    assert len(asyncio.all_tasks()) == 1
    if begun:
        assert client.cancelled == 1


async def test_close_of_a_drained_writer_is_idempotent():
    client = Client()
    writer = StreamWriter(client.send)
    writer.write(b"a")

    writer.close()
    writer.close()

    assert client.bodies == [b"a"]


async def test_write_raises_what_send_raises():
    client = Client()
    client.failure = OSError("gone")
    writer = StreamWriter(client.send)

    with pytest.raises(OSError, match="gone"):
        writer.write(b"a")
    await writer.drained()


async def test_drained_raises_what_a_waiting_send_raises():
    """No later body is sent."""
    client = Client(slow=True)
    writer = StreamWriter(client.send)
    drains = Drains(writer, client)
    writer.write(b"a")
    writer.write(b"b")
    client.failure = OSError("gone")

    client.open.set()
    with pytest.raises(OSError, match="gone"):
        await writer.drained()
    client.failure = None

    assert writer.write(b"c") is True
    assert (client.bodies, drains.sent) == ([], [])


async def test_send_continues_in_its_task():
    """As if it had started there: event loop iterations, futures, timeouts and failures work."""
    done: list[str] = []
    loop = asyncio.get_running_loop()
    broken, fine = loop.create_future(), loop.create_future()

    async def send(message: Any) -> None:
        await asyncio.sleep(0)
        done.append("turned")
        with pytest.raises(KeyError):
            await broken
        done.append("failed")
        async with asyncio.timeout(5):
            done.append(await fine)
        await asyncio.sleep(0.001)
        done.append(message["body"].decode())

    writer = StreamWriter(send)
    assert writer.write(b"body") is True
    loop.call_later(0.001, broken.set_exception, KeyError("x"))
    loop.call_later(0.002, fine.set_result, "fine")
    await writer.drained()

    assert done == ["turned", "failed", "fine", "body"]


async def test_send_receives_the_exception_of_its_first_await():
    broken = asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        await broken

    writer = StreamWriter(send)
    writer.write(b"a")
    broken.set_exception(KeyError("x"))

    with pytest.raises(KeyError):
        await writer.drained()


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["open", "shut", "turn", "drained"]) | st.binary(max_size=3)),
    factory=st.sampled_from([asyncio.new_event_loop, uvloop.new_event_loop]),
)
def test_every_byte_is_sent_once_and_in_order(steps, factory):
    """At any speed of the client. `write` returns whether bytes are still pending."""

    async def run() -> None:
        client = Client()
        writer = StreamWriter(client.send)
        written = b""
        for step in steps:
            if isinstance(step, bytes):
                waits = writer.write(step)
                written += step
                assert waits is (b"".join(client.bodies) != written) or not step
            elif step == "open":
                client.open.set()
            elif step == "shut":
                client.open.clear()
            elif step == "drained" and client.open.is_set():
                await writer.drained()
                assert written == b"".join(client.bodies)
            else:
                await asyncio.sleep(0)
        client.open.set()
        await writer.drained()
        assert written == b"".join(client.bodies)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())


class Short:
    """A server's direct write that never writes, but can drop its client."""

    def __init__(self) -> None:
        self.drops = 0

    def __call__(self, piece: bytes, /) -> bool:
        return False

    def socket(self) -> None:
        return None

    def drop(self) -> None:
        self.drops += 1


async def test_client_beyond_the_buffer_limit_is_dropped():
    """A full buffer is allowed. One more byte drops the client, once, and empties the buffer."""
    client, short = Client(slow=True), Short()
    writer = StreamWriter(client.send, short, max_buffer_bytes=4)
    writer.write(b"under way")

    assert [writer.write(b"ab"), writer.write(b"cd"), short.drops] == [True, True, 0]
    assert [writer.write(b"e"), writer.write(b"f"), short.drops] == [True, True, 1]
    client.open.set()
    await writer.drained()
    assert client.bodies == [b"under way"]


async def test_buffer_limit_does_not_apply_to_bodies_sent_immediately():
    client = Client()
    writer = StreamWriter(client.send, Short(), max_buffer_bytes=4)

    assert writer.write(b"more than four") is False
    assert client.bodies == [b"more than four"]


async def test_full_buffer_cancels_the_request_if_the_server_cannot_drop():
    """The request ends as if the client had disconnected."""
    writer = StreamWriter(Client(slow=True).send, max_buffer_bytes=4)
    writer.write(b"under way")

    with pytest.raises(RequestCancelled):
        writer.write(b"abcde")
    writer.close()


async def test_source_is_resumed_at_intervals_while_the_client_is_slow(monkeypatch):
    """Text that the source has gathered then counts against the buffer."""
    monkeypatch.setattr("openai_frontend.routers.streaming.FLUSH_INTERVAL_S", 0.01)
    client, short = Client(slow=True), Short()
    writer = StreamWriter(client.send, short, max_buffer_bytes=4)

    def go_on() -> None:
        writer.write(b"x")

    writer.on_drained = go_on
    writer.write(b"under way")

    async with asyncio.timeout(5):
        while not short.drops:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.01)
    writer.close()

    assert short.drops == 1


async def test_response_start_is_sent_before_every_body():
    """Even if it has to wait."""
    client, started = Client(slow=True), []

    async def start() -> None:
        await client.open.wait()
        started.append(list(client.bodies))

    writer = StreamWriter(client.send)
    writer.begin(start())
    assert writer.write(b"a") is True
    client.open.set()
    await writer.drained()

    assert (started, client.bodies) == ([[]], [b"a"])


async def test_stream_is_silent_if_only_comments_were_written():
    """Since the last call of `is_silent`."""

    writer = StreamWriter(Client().send)

    told = [writer.is_silent()]
    writer.write(b"a")
    told += [writer.is_silent(), writer.is_silent()]
    writer.comment(b"c")
    told.append(writer.is_silent())

    assert told == [True, False, True, True]


async def test_stream_with_a_pending_body_is_not_silent():
    client = Client(slow=True)
    writer = StreamWriter(client.send)
    writer.write(b"a")

    assert [writer.is_silent(), writer.is_silent()] == [False, False]
    client.open.set()
    await writer.drained()
    assert writer.is_silent() is True


async def test_direct_write_to_the_socket_ends_the_silence():
    """The first direct write after a check asks for a new check."""
    asked = []

    class Socket(Short):
        def socket(self) -> ChunkedSocket:  # type: ignore[override]
            self.client = ChunkedSocket(0, lambda: True, lambda rest: None)
            self.client.before_write = lambda: asked.append("recheck")
            return self.client

    writer = StreamWriter(Client().send, Socket())
    socket = writer.socket()
    assert socket is not None

    assert (writer.is_silent(), asked) == (True, ["recheck"])
    assert socket.idle()
    assert (writer.is_silent(), writer.is_silent()) == (False, True)
