"""One keep-alive connection of the client: sends requests, feeds a reader with what comes."""

import json
import random
import socket
import time

from benchmarks.load import Load, Measured
from benchmarks.response_reader import FRAMES_BESIDE_CHUNKS, BadResponse, StreamReader, WholeReader

# recv allocates as much; beyond 128 KiB that would be a new mapping for each call
_READ_BYTES = 65536

MODEL = "mock"
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Tell me in a few sentences how a benchmark stays honest."},
]


def post(path: str, body: dict[str, object]) -> bytes:
    """A request's bytes."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer none\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def chat(model: str, *, stream: bool, tokens: int) -> bytes:
    """A chat request of this size of answer."""
    body = {"model": model, "messages": MESSAGES, "stream": stream, "max_tokens": tokens}
    return post("/v1/chat/completions", body)


def connect(port: int) -> socket.socket:
    """A connection without Nagle's delay."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class ChatConnection:
    """Sends the next request once the last one is answered, until it is told to stop."""

    def __init__(self, load: Load, number: int, measured: Measured) -> None:
        self._load = load
        self._measured = measured
        self._random = random.Random(load.seed * 1000 + number)
        self._socket = connect(load.port)
        self._reader: StreamReader | WholeReader
        self.stopping = False
        self.idle = True

    def fileno(self) -> int:
        """For epoll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def send(self) -> None:
        """The next request."""
        load = self._load
        self._tokens = self._random.randint(*load.tokens)
        self._reader = StreamReader() if load.stream else WholeReader()
        self._sent_s = time.perf_counter()
        self.idle = False
        self._socket.sendall(chat(MODEL, stream=load.stream, tokens=self._tokens))

    def receive(self) -> None:
        """What has come."""
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise BadResponse("the server closed a connection")
        reader = self._reader
        if isinstance(reader, StreamReader):
            self._receive_frames(reader, data)
        else:
            reader.feed(data)
        if reader.finished:
            self._finish(reader)

    def _receive_frames(self, reader: StreamReader, data: bytes) -> None:
        frames, began = reader.frames, reader.began
        reader.feed(data)
        self._measured.chunks += reader.frames - frames
        if reader.began and not began:
            self._measured.chunks -= 1  # the opening frame
            self._measured.ttft_s.append(time.perf_counter() - self._sent_s)

    def _finish(self, reader: StreamReader | WholeReader) -> None:
        measured = self._measured
        measured.responses += 1
        measured.tokens += self._tokens
        if isinstance(reader, StreamReader):
            measured.chunks -= FRAMES_BESIDE_CHUNKS - 1
            measured.response_chunks += reader.frames - FRAMES_BESIDE_CHUNKS
        self.idle = self.stopping
        if not self.stopping:
            self.send()


class Probe:
    """Asks /health/live on a schedule that the answers do not change."""

    _REQUEST = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

    def __init__(self, port: int, interval_s: float, *, delay_s: float, measured: Measured) -> None:
        self._socket = connect(port)
        self._interval_s = interval_s
        self._measured = measured
        self._reader: WholeReader | None = None
        self._due_s = time.perf_counter() + delay_s
        self.stopping = False

    @property
    def idle(self) -> bool:
        """No answer is awaited."""
        return self._reader is None

    def fileno(self) -> int:
        """For epoll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def remaining_s(self) -> float:
        """Until the next one is due; an answer that is late delays none of the intended times."""
        return max(self._due_s - time.perf_counter(), 0.0) if self.idle else self._interval_s

    def send(self) -> None:
        """The next one, if it is due."""
        if self._reader is None and time.perf_counter() >= self._due_s and not self.stopping:
            self._reader = WholeReader()
            self._socket.sendall(self._REQUEST)

    def receive(self) -> None:
        """Its answer."""
        if self._reader is None:
            raise BadResponse("an answer that nobody asked for")
        self._reader.feed(self._socket.recv(_READ_BYTES))
        if self._reader.finished:
            self._measured.probe_s.append(time.perf_counter() - self._due_s)
            self._reader = None
            self._due_s += self._interval_s
