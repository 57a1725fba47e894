"""The order and the waits of a stream's body, whatever pace its client has."""

import asyncio
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.errors import RequestCancelled
from openai_frontend.generation import ChunkedSocket
from openai_frontend.routers.stream_writer import StreamWriter


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
    """Counts the calls of `on_drained`, and what had been sent by then."""

    def __init__(self, writer: StreamWriter, client: Client) -> None:
        self.sent: list[bytes] = []
        writer.on_drained = lambda: self.sent.append(b"".join(client.bodies))


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_quick_client():
    """Each body has left when `write` returns, without a turn of the loop."""
    client = Client()
    writer = StreamWriter(client.send)
    drains = Drains(writer, client)

    assert [writer.write(b"a"), writer.write(b"b")] == [False, False]
    assert client.bodies == [b"a", b"b"]
    await writer.drained()
    await turns()
    assert drains.sent == []


async def test_quick_client_without_a_task():
    """A callback that no task runs can write too."""
    client, done = Client(), asyncio.Event()
    writer = StreamWriter(client.send)

    def callback() -> None:
        assert asyncio.current_task() is None
        writer.write(b"a")
        done.set()

    asyncio.get_running_loop().call_soon(callback)
    await done.wait()

    assert client.bodies == [b"a"]


async def test_slow_client():
    """`write` says True while the client is slow; what it is given meanwhile leaves as one body."""
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


async def test_client_that_is_slow_again():
    """A client may be slow for each body anew; it is drained once all has been sent."""
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


async def test_written_when_it_is_drained():
    """What `on_drained` writes leaves after the rest, and `drained` waits for it too."""
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


async def test_drained_waits():
    """`drained` returns only once the client has taken everything."""
    client = Client(slow=True)
    writer = StreamWriter(client.send)
    writer.write(b"a")
    waiting = asyncio.create_task(writer.drained())
    await turns()

    assert not waiting.done()
    client.open.set()
    await waiting
    assert client.bodies == [b"a"]


async def test_a_wait_that_is_cancelled():
    """Whoever waits may give up: what was written leaves all the same."""
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
async def test_close(begun):
    """A close drops what waits and ends the send, whether or not the loop has turned since."""
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


async def test_close_of_what_is_drained():
    """A close with nothing under way changes nothing, and may come twice."""
    client = Client()
    writer = StreamWriter(client.send)
    writer.write(b"a")

    writer.close()
    writer.close()

    assert client.bodies == [b"a"]


async def test_send_that_fails_at_once():
    """`write` raises what `send` raises."""
    client = Client()
    client.failure = OSError("gone")
    writer = StreamWriter(client.send)

    with pytest.raises(OSError, match="gone"):
        writer.write(b"a")
    await writer.drained()


async def test_send_that_fails_after_its_wait():
    """`drained` raises what `send` raised after it had waited; no later body overtakes."""
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


async def test_send_that_waits_in_many_ways():
    """A `send` goes on in its task as if it had begun there: turns, futures, failures."""
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


async def test_first_wait_that_fails():
    """An exception of the very first thing that `send` waits for is told to `send`."""
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
def test_any_pace(steps, factory):
    """Whatever the client's pace: every byte leaves once, in order, and `write` tells the truth."""

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
    """A server's short way that takes nothing at once, and can drop its client."""

    def __init__(self) -> None:
        self.drops = 0

    def __call__(self, piece: bytes, /) -> bool:
        return False

    def socket(self) -> None:
        return None

    def drop(self) -> None:
        self.drops += 1


async def test_what_may_wait():
    """As many bytes as may wait do; one more drops the client, once, and nothing waits any more."""
    client, short = Client(slow=True), Short()
    writer = StreamWriter(client.send, short, max_buffer_bytes=4)
    writer.write(b"under way")

    assert [writer.write(b"ab"), writer.write(b"cd"), short.drops] == [True, True, 0]
    assert [writer.write(b"e"), writer.write(b"f"), short.drops] == [True, True, 1]
    client.open.set()
    await writer.drained()
    assert client.bodies == [b"under way"]


async def test_any_size_at_once():
    """A body that does not have to wait may be of any size."""
    client = Client()
    writer = StreamWriter(client.send, Short(), max_buffer_bytes=4)

    assert writer.write(b"more than four") is False
    assert client.bodies == [b"more than four"]


async def test_too_much_for_a_server_that_cannot_drop():
    """The request ends as if the client had gone."""
    writer = StreamWriter(Client(slow=True).send, max_buffer_bytes=4)
    writer.write(b"under way")

    with pytest.raises(RequestCancelled):
        writer.write(b"abcde")
    writer.close()


async def test_writer_that_holds(monkeypatch):
    """A writer is resumed now and then while the client is slow: what it has counts here."""
    monkeypatch.setattr("openai_frontend.routers.stream_writer.FLUSH_INTERVAL_S", 0.01)
    client, short = Client(slow=True), Short()
    writer = StreamWriter(client.send, short, max_buffer_bytes=4)

    def go_on() -> None:
        writer.write(b"x")

    writer.on_drained = go_on
    writer.write(b"under way")

    async with asyncio.timeout(5):
        while not short.drops:  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0.01)
    writer.close()

    assert short.drops == 1


async def test_start():
    """It leaves before every body, also where it has to wait."""
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


async def test_silence():
    """It is told once for each time in which nothing was written but comments, by nobody."""
    writer = StreamWriter(Client().send)

    told = [writer.is_silent()]
    writer.write(b"a")
    told += [writer.is_silent(), writer.is_silent()]
    writer.comment(b"c")
    told.append(writer.is_silent())

    assert told == [True, False, True, True]


async def test_no_silence_of_a_slow_client():
    """Something is on its way to it."""
    client = Client(slow=True)
    writer = StreamWriter(client.send)
    writer.write(b"a")

    assert [writer.is_silent(), writer.is_silent()] == [False, False]
    client.open.set()
    await writer.drained()
    assert writer.is_silent() is True


async def test_silence_past_the_outlet():
    """What goes to the client's socket breaks it too: the first piece after a look asks."""
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
