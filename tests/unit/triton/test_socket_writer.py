"""Chunks written directly to a socket, and the rest via its transport: complete and in order."""

import contextlib
import gc
import socket
from collections.abc import Callable, Iterator

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.triton import _core

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Connection:
    """A socket with a transport that buffers, like the event loop's, and the client's end."""

    def __init__(self) -> None:
        self.server, self.client = socket.socketpair()
        self.server.setblocking(False)
        self.client.setblocking(False)
        self.buffered = bytearray()  # by the transport
        self.asked = 0  # whether the transport is idle
        self.otherwise: list[bytes] = []
        self.received = bytearray()
        self.writer = _core.SocketWriter(
            self.server.fileno(), self.idle, self.buffered.extend, self.write_otherwise
        )

    def idle(self) -> bool:
        self.asked += 1
        return not self.buffered

    def write_otherwise(self, piece: bytes) -> bool:
        """Writes like a transport; pauses if too much is buffered."""
        self.otherwise.append(piece)
        self.buffered += b"%x\r\n%b\r\n" % (len(piece), piece)
        return len(self.buffered) > 10_000

    def flush(self) -> None:
        """Writes the buffer, as a transport does when the socket has room."""
        with contextlib.suppress(BlockingIOError):
            while self.buffered:
                del self.buffered[: self.server.send(self.buffered)]

    def read(self, most: int = 1 << 20) -> None:
        """Reads as a client, at most that many bytes."""
        with contextlib.suppress(BlockingIOError):
            self.received += self.client.recv(most)

    def all_of_it(self) -> bytes:
        """The body that the client has received, once it is complete."""
        while self.buffered:
            self.flush()
            self.read()
        for _ in range(2):
            self.read()
        return body(bytes(self.received))

    def close(self) -> None:
        self.writer.close()
        self.server.close()
        self.client.close()


def body(chunks: bytes) -> bytes:
    """Parses the body like an HTTP client."""
    read: list[bytes] = []

    class Parts:
        def on_body(self, part: bytes) -> None:
            read.append(part)

    httptools.HttpResponseParser(Parts()).feed_data(HEAD + chunks)
    return b"".join(read)


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    yield made
    made.close()


def test_chunks(connection):
    """Each piece becomes a chunk immediately; the transport's state is checked once."""
    held = [connection.writer(piece) for piece in (b"a", b"bc" * 40, "é\n".encode())]

    connection.read()
    assert (
        connection.received == b"1\r\na\r\n" + b"50\r\n" + b"bc" * 40 + b"\r\n3\r\n\xc3\xa9\n\r\n"
    )
    assert held == [False] * 3
    assert (connection.asked, connection.otherwise) == (1, [])


def test_empty_piece(connection):
    """It is dropped: an empty chunk would end the body."""
    assert connection.writer(b"") is False
    connection.writer(b"a")

    connection.read()
    assert connection.received == b"1\r\na\r\n"


def test_transport_with_buffered_data(connection):
    """Its data comes first: pieces wait until it is idle."""
    connection.buffered += b"1\r\n-\r\n"
    connection.writer(b"a")
    assert connection.otherwise == [b"a"]
    connection.flush()

    connection.writer(b"b")

    assert connection.otherwise == [b"a"]
    assert connection.all_of_it() == b"-ab"


def test_write_through_the_transport_in_between(connection):
    """Afterwards the transport's state is checked again."""
    connection.writer(b"a")
    connection.writer.recheck()
    connection.buffered += b"1\r\n-\r\n"

    connection.writer(b"b")
    connection.flush()
    connection.writer(b"c")

    assert connection.otherwise == [b"b"]
    assert connection.all_of_it() == b"a-bc"


def test_full_socket(connection):
    """Data without room in the socket goes through the transport, including the rest of a chunk."""
    pieces = [b"%04d" % number * 10_000 for number in range(40)]

    held = [connection.writer(piece) for piece in pieces]

    assert held[0] is False
    assert held[-1] is True
    assert 0 < len(connection.otherwise) < 40
    assert connection.all_of_it() == b"".join(pieces)
    connection.writer(b"once more")
    connection.read()
    assert connection.received.endswith(b"9\r\nonce more\r\n")
    assert connection.otherwise[-1] != b"once more"


def test_closed(connection):
    """Nothing is written to the descriptor, which may be reused already."""
    connection.writer(b"a")
    connection.writer.close()

    connection.writer(b"b")

    connection.read()
    assert connection.received == b"1\r\na\r\n"
    assert connection.otherwise == [b"b"]


def test_client_that_has_gone(connection):
    """The transport handles the error; no signal ends the process."""
    connection.writer(b"a")
    connection.client.close()

    connection.writer(b"b")

    assert connection.otherwise == [b"b"]


@pytest.mark.parametrize("part", ["idle", "otherwise"])
def test_failures(part):
    """The transport's exceptions are raised."""

    def fails(*_: object) -> bool:
        raise ValueError(part)

    calls: dict[str, Callable[..., bool]] = {"idle": lambda: False, "otherwise": lambda _: False}
    calls[part] = fails
    writer = _core.SocketWriter(0, calls["idle"], print, calls["otherwise"])

    with pytest.raises(ValueError, match=part):
        writer(b"a")


def test_cycle():
    """A writer in a reference cycle with its callbacks is collected."""

    class Owner:
        gone = 0

        def __del__(self) -> None:
            Owner.gone += 1

    def make() -> None:
        owner = Owner()

        def idle(*_: object) -> bool:
            return owner is None

        owner.writer = _core.SocketWriter(0, idle, idle, idle)  # type: ignore[attr-defined]

    make()
    gc.collect()

    assert Owner.gone == 1


steps = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=40),
        st.integers(1, 60_000).map(lambda size: b"x" * size),
        st.sampled_from(["read", "flush", "between"]),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_any_pace(steps):
    """At any pace of client, transport and pieces, the client receives the pieces in order."""
    connection = Connection()
    connection.server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent = b""
    try:
        for step in steps:
            if step == "read":
                connection.read(20_000)
            elif step == "flush":
                connection.flush()
            elif step == "between":
                connection.writer.recheck()
                connection.buffered += b"1\r\n-\r\n"
                sent += b"-"
            else:
                connection.writer(step)
                sent += step
        assert connection.all_of_it() == sent
    finally:
        connection.close()
