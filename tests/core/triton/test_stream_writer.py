"""The body of a response, to a socket and its transport: complete, in order, and bounded."""

import contextlib
import gc
import socket
from collections.abc import Iterator

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.triton import StreamWriter
from tests.examples import scaled

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
HIGH = 10_000  # bytes in the transport's buffer, beyond which it pauses


class Connection:
    """A socket with a transport that buffers and pauses, like the event loop's, and the client's
    end.
    """

    def __init__(
        self,
        *,
        limit: int = 1 << 30,
        opened: bool = True,
        direct: bool = True,
        high: int = HIGH,
    ) -> None:
        self.high, self.low = high, high // 4
        self.server, self.client = socket.socketpair()
        self.server.setblocking(False)
        self.client.setblocking(False)
        self.buffer = bytearray()  # the transport's
        self.full = False
        self.asked = 0  # how much is buffered
        self.through_transport: list[bytes] = []
        self.received = bytearray()
        self.drops = self.drained = 0
        self.direct = direct
        self.writer = StreamWriter(limit, self.drop)
        if opened:
            self.open()
        self.writer.on_drained = self.on_drained

    def open(self) -> None:
        fd = self.server.fileno() if self.direct else -1
        self.writer.open(self.write, self.buffered, fd=fd, paused=self.full)

    def buffered(self) -> int:
        self.asked += 1
        return len(self.buffer)

    def write(self, data: bytes) -> None:
        self.through_transport.append(data)
        self.buffer += data
        if len(self.buffer) > self.high and not self.full:
            self.full = True
            self.writer.pause()

    def drop(self) -> None:
        self.drops += 1

    def on_drained(self) -> None:
        self.drained += 1

    def flush(self) -> None:
        """Writes the buffer, as a transport does when the socket has room."""
        with contextlib.suppress(BlockingIOError):
            while self.buffer:
                del self.buffer[: self.server.send(self.buffer)]
                if self.full and len(self.buffer) <= self.low:
                    self.full = False
                    self.writer.resume()

    def read(self, most: int = 1 << 20) -> None:
        """Reads as a client, at most that many bytes."""
        with contextlib.suppress(BlockingIOError):
            self.received += self.client.recv(most)

    def all_of_it(self) -> bytes:
        """The body that the client has received, once it is complete."""
        while self.buffer:
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
    slow = [connection.writer(piece) for piece in (b"a", b"bc" * 40, "é\n".encode())]

    connection.read()
    assert (
        connection.received == b"1\r\na\r\n" + b"50\r\n" + b"bc" * 40 + b"\r\n3\r\n\xc3\xa9\n\r\n"
    )
    assert slow == [False] * 3
    assert (connection.asked, connection.through_transport) == (1, [])
    assert connection.writer.body_bytes == 84


def test_empty_piece(connection):
    """It is dropped: an empty chunk would end the body."""
    assert connection.writer(b"") is False
    connection.writer(b"a")

    connection.read()
    assert connection.received == b"1\r\na\r\n"


def test_without_chunks(connection):
    """Pieces go to a transport that frames them itself."""
    pieces: list[bytes] = []
    writer = StreamWriter(10, print)
    writer.open(pieces.append, int, chunked=False)

    writer(b"a")
    writer(b"b")

    assert pieces == [b"a", b"b"]


def test_before_the_headers():
    """Pieces wait, as one chunk."""
    connection = Connection(opened=False)
    assert [connection.writer(b"a"), connection.writer(b"b")] == [True, True]
    connection.writer.resume()
    assert (connection.writer.body_bytes, connection.through_transport) == (0, [])

    connection.open()

    connection.read()
    assert connection.received == b"2\r\nab\r\n"
    assert connection.writer.body_bytes == 2
    connection.close()


def test_headers_behind_a_full_transport():
    """Pieces wait for the client, not only for the headers."""
    connection = Connection(opened=False)
    connection.full = True
    connection.open()
    assert connection.writer(b"a") is True
    connection.buffer += b"1\r\n-\r\n"
    connection.flush()

    assert connection.all_of_it() == b"-a"
    connection.close()


def test_full_socket(connection):
    """Data without room in the socket goes through the transport, including the rest of a chunk,
    and waits once that is full too.
    """
    pieces = [b"%04d" % number * 10_000 for number in range(40)]

    slow = [connection.writer(piece) for piece in pieces]

    assert (slow[0], slow[-1], connection.writer.paused) == (False, True, True)
    assert 0 < len(connection.through_transport) < 40
    assert connection.drained == 0
    assert connection.all_of_it() == b"".join(pieces)
    assert (connection.drained, connection.writer.paused) == (1, False)
    before = len(connection.through_transport)
    connection.writer(b"once more")
    connection.read()
    assert connection.received.endswith(b"9\r\nonce more\r\n")
    assert len(connection.through_transport) == before
    assert connection.writer.body_bytes == 40 * 40_000 + 9


def test_piece_that_fills_the_transport(connection):
    """`write` reports it at once."""
    connection.direct = False
    connection.open()

    assert connection.writer(b"a" * HIGH) is True
    assert connection.writer(b"b") is True
    assert len(connection.through_transport) == 1


def test_limit():
    """A full buffer is allowed. One more byte drops the client, once, and discards the rest."""
    connection = Connection(limit=4)
    connection.writer.pause()

    assert [connection.writer(b"ab"), connection.writer(b"cd"), connection.drops] == [True, True, 0]
    assert [connection.writer(b"e"), connection.writer(b"f"), connection.drops] == [False, False, 1]
    connection.writer.resume()
    assert (connection.all_of_it(), connection.writer.body_bytes) == (b"", 0)
    connection.close()


def test_limit_before_the_headers():
    connection = Connection(limit=1, opened=False)

    assert [connection.writer(b"a"), connection.writer(b"b")] == [True, False]
    connection.open()
    assert (connection.drops, connection.all_of_it()) == (1, b"")
    connection.close()


def test_first_piece_may_exceed_the_limit_before_the_headers():
    """It waits for them, not for the client. What follows it is limited as usual."""
    connection = Connection(limit=4, opened=False)

    assert [connection.writer(b"a" * 9), connection.writer(b"bcde")] == [True, True]
    connection.open()
    assert connection.all_of_it() == b"a" * 9 + b"bcde"
    connection.writer.pause()
    assert [connection.writer(b"fghi"), connection.writer(b"j"), connection.drops] == [
        True, False, 1
    ]  # fmt: skip
    connection.close()


def test_large_piece_behind_a_comment_before_the_headers():
    """It waits for them too, but only one does: a second one drops the client."""
    connection = Connection(limit=4, opened=False)

    assert [connection.writer(piece) for piece in (b":", b"a" * 9, b"bcd")] == [True] * 3
    connection.open()
    assert connection.all_of_it() == b":" + b"a" * 9 + b"bcd"
    connection.close()

    connection = Connection(limit=4, opened=False)
    assert [connection.writer(piece) for piece in (b"a" * 9, b"b" * 5)] == [True, False]
    assert connection.drops == 1
    connection.close()


def test_large_first_piece_for_a_slow_client():
    """A client that does not read, for example an earlier response, is dropped."""
    connection = Connection(limit=4, opened=False)
    connection.full = True
    connection.writer(b"a" * 9)
    connection.open()

    assert [connection.writer(b"bcde"), connection.drops] == [True, 0]
    assert [connection.writer(b"f"), connection.drops] == [False, 1]
    assert connection.all_of_it() == b""
    connection.close()


def test_limit_does_not_apply_to_written_pieces():
    connection = Connection(limit=4)

    assert connection.writer(b"more than four") is False
    assert connection.all_of_it() == b"more than four"
    connection.close()


def test_closed(connection):
    """Nothing is written to the descriptor, which may be reused already, nor to the transport."""
    connection.writer(b"a")
    connection.writer.close()

    assert connection.writer(b"b") is False
    connection.writer.pause()
    assert connection.writer(b"c") is False
    connection.writer.resume()

    connection.read()
    assert connection.received == b"1\r\na\r\n"
    assert (connection.through_transport, connection.writer.body_bytes) == ([], 1)


def test_close_wakes_who_waits(connection):
    """Once: what waits is discarded."""
    connection.writer.pause()
    connection.writer(b"a")
    connection.writer.close()
    connection.writer.close()
    connection.writer.resume()

    assert (connection.drained, connection.writer.paused) == (1, False)
    assert connection.all_of_it() == b""


def test_close_with_an_error(connection):
    """Later pieces raise it."""
    connection.writer.close(OSError("gone"))

    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            connection.writer(b"a")


def test_client_that_has_gone(connection):
    """The transport handles the error; no signal ends the process."""
    connection.writer(b"a")
    connection.client.close()

    connection.writer(b"b")

    assert connection.through_transport == [b"1\r\nb\r\n"]


def fails(*_: object) -> int:
    raise ValueError("failed")


@pytest.mark.parametrize("part", ["write", "buffered", "drop"])
def test_failures(part):
    """The transport's exceptions are raised."""
    writer = StreamWriter(0, fails)
    buffered = fails if part == "buffered" else lambda: 1
    writer.open(fails, buffered, fd=0, paused=part == "drop")

    with pytest.raises(ValueError, match="failed"):
        writer(b"a")


def test_cycle():
    """A writer in a reference cycle with its callbacks is collected."""

    class Owner:
        gone = 0

        def __del__(self) -> None:
            Owner.gone += 1

    def make() -> None:
        owner = Owner()

        def call(*_: object) -> int:
            return owner is None

        writer = owner.writer = StreamWriter(0, call)  # type: ignore[attr-defined]
        writer.open(call, call)
        writer.on_drained = call

    make()
    gc.collect()

    assert Owner.gone == 1


steps = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=40),
        st.integers(1, 60_000).map(lambda size: b"x" * size),
        st.sampled_from(["read", "flush"]),
    ),
    max_size=30,
)


@settings(max_examples=scaled(60), deadline=None)
@given(steps, st.integers(0, 3), st.booleans())
def test_any_pace(steps, headers_after, direct):
    """At any pace of client, transport and pieces, with a socket or without, the client receives
    the pieces in order, and a writer that is not paused has nothing that waits.
    """
    connection = Connection(opened=False, direct=direct)
    connection.server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent = b""
    try:
        for at, step in enumerate(steps):
            if at == headers_after:
                connection.open()
            if step == "read":
                connection.read(20_000)
            elif step == "flush":
                connection.flush()
            else:
                slow = connection.writer(step)
                sent += step
                assert slow or connection.writer.body_bytes == len(sent)
        if len(steps) <= headers_after:
            connection.open()
        assert connection.all_of_it() == sent
        assert connection.writer.body_bytes == len(sent)
    finally:
        connection.close()
