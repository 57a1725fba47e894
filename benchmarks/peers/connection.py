"""One kept-alive connection of the client: one request at a time, its times and its tokens."""

import socket
import time

from benchmarks.peers import requests
from benchmarks.peers.event_stream import BadResponse, StreamReader
from benchmarks.peers.load import CHAT, Load, Seen
from benchmarks.peers.vectors import VectorReader

# recv allocates as much; beyond 128 KiB that would be a new mapping for each call
_READ_BYTES = 65536


class Connection:
    """Sends requests and reads their answers; what falls into the window goes to Seen."""

    def __init__(self, load: Load, seen: Seen) -> None:
        self._load = load
        self._seen = seen
        self._socket = socket.create_connection(("127.0.0.1", load.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._chat = load.kind == CHAT

    def fileno(self) -> int:
        """For epoll."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def send(self, number: int, due_s: float) -> None:
        """Send the request with this number; `due_s` is when it was to be sent."""
        self._reader = StreamReader() if self._chat else VectorReader(self._load.batch)
        self._due_s = due_s
        self._last_s = 0.0  # when its last chunk came
        self._chunks = 0  # its chunks within the window
        self._counts = self._seen.open  # its times are of the window
        content = requests.post(self._load, number)
        if self._counts and self._load.rate_per_s:
            self._seen.lateness_s.append(time.perf_counter() - due_s)
        self._socket.sendall(content)

    def receive(self) -> bool:
        """Read what is there; say whether that ended the answer."""
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise BadResponse(f"a connection that was closed {self._state()}")
        reader = self._reader
        if chunks := reader.feed(data):
            self._take(chunks)
        if reader.finished:
            self._finish(reader)
        return reader.finished

    def _state(self) -> str:
        now_s = time.perf_counter()
        return f"{now_s - self._due_s:.3f} s after its request, {self._reader.chunks} chunks after"

    def _take(self, chunks: int) -> None:
        seen, now_s = self._seen, time.perf_counter()
        if seen.open:
            self._chunks += chunks
            seen.chunks += chunks
            if self._last_s:
                seen.gap_s.append(now_s - self._last_s)
            if chunks > 1:  # came together: no time between them
                seen.gap_s.extend([0.0] * (chunks - 1))
        if not self._last_s and self._counts:
            seen.ttft_s.append(now_s - self._due_s)
        self._last_s = now_s

    def _finish(self, reader: StreamReader | VectorReader) -> None:
        seen = self._seen
        if self._chat:
            if reader.tokens != self._load.tokens:
                raise BadResponse(f"{reader.tokens} tokens, not {self._load.tokens}")
            seen.tokens += self._load.tokens * self._chunks / reader.chunks
        if seen.open:
            seen.responses += 1
            seen.texts += 0 if self._chat else self._load.batch
        if self._counts:
            seen.latency_s.append(time.perf_counter() - self._due_s)
