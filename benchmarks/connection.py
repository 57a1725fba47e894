"""One keep-alive connection of the client: sends requests, feeds a reader with what comes."""

import random
import socket
import time

from benchmarks.load import Load, Measured
from benchmarks.request import ending, request, text_field
from benchmarks.response_reader import REFUSED, BadResponse, StreamReader, WholeReader

# recv allocates as much; beyond 128 KiB that would be a new mapping for each call
READ_BYTES = 65536


def connect(port: int) -> socket.socket:
    """A connection without Nagle's delay."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Caller:
    """Makes a load's requests, one after the other.

    In a closed loop it sends the next one once the last is answered, until it is told to stop; in
    an open loop it waits to be told.
    """

    def __init__(self, load: Load, number: int, measured: Measured) -> None:
        self._load = load
        self._measured = measured
        self._random = random.Random(load.seed * 1000 + number)
        self._socket = connect(load.port)
        self._reader: StreamReader | WholeReader
        self._last_text_s: float
        self.stopping = False
        self.idle = True

    def fileno(self) -> int:
        """For epoll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def send(self, due_s: float | None = None) -> None:
        """The next request; its times count from when it was due, if that is told."""
        load = self._load
        self._tokens = self._random.randint(*load.tokens)
        self._reader = (
            StreamReader(text_field(load.kind)) if load.stream else WholeReader(ending(load.kind))
        )
        message = request(
            load.kind,
            load.model,
            stream=load.stream,
            tokens=self._tokens,
            prompt_bytes=load.prompt_bytes,
        )
        now_s = self._really_sent_s = time.perf_counter()
        self._sent_s = now_s if due_s is None else due_s
        self._refused = False
        if due_s is not None:
            self._measured.late_s.append(now_s - due_s)
        self.idle = False
        self._socket.sendall(message)

    def receive(self) -> None:
        """What has come."""
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise BadResponse("the server closed a connection")
        if self._load.refusals and data.startswith(REFUSED):
            self._refused, self._reader = True, WholeReader(status=REFUSED)
        reader = self._reader
        if isinstance(reader, StreamReader):
            self._receive_frames(reader, data)
        else:
            reader.feed(data)
        if reader.finished:
            self._finish(reader)

    def _receive_frames(self, reader: StreamReader, data: bytes) -> None:
        chunks, tokens, began = reader.chunks, reader.tokens, reader.began
        reader.feed(data)
        measured = self._measured
        measured.chunks += reader.chunks - chunks
        measured.tokens += reader.tokens - tokens
        if reader.began and not began:
            self._last_text_s = time.perf_counter()
            measured.ttft_s.append(self._last_text_s - self._sent_s)
        elif self._load.gaps and reader.chunks > chunks:
            now_s = time.perf_counter()
            measured.gap_s.append(now_s - self._last_text_s)
            self._last_text_s = now_s

    def _finish(self, reader: StreamReader | WholeReader) -> None:
        if isinstance(reader, StreamReader):
            self._check_tokens(reader.tokens)
        now_s = time.perf_counter()
        if self._refused:
            self._measured.refusal_s.append(now_s - self._really_sent_s)
        else:
            self._measured.responses += 1
            self._measured.latency_s.append(now_s - self._sent_s)
        self.idle = self.stopping or bool(self._load.rate_per_s)
        if not self.idle:
            self.send()

    def _check_tokens(self, came: int) -> None:
        if self._load.exact and came != self._tokens:
            raise BadResponse(f"{came} tokens came where {self._tokens} were asked for")
