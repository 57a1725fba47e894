"""One keep-alive connection of the client: sends requests, feeds a reader with what comes."""

import random
import socket
import time
from collections.abc import Iterator

from benchmarks.load import Load, Measured
from benchmarks.request import (
    Prompt,
    asks_usage,
    embeds,
    request,
    stream_end,
    text_field,
    whole_ending,
)
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

    In a closed loop it sends the next one once the last is answered, until it is stopped. In an
    open loop, `send` is called for each request.
    """

    def __init__(
        self, load: Load, number: int, measured: Measured, request_numbers: Iterator[int]
    ) -> None:
        self._load = load
        self._measured = measured
        self._request_numbers = request_numbers  # of all callers
        self._random = random.Random(load.seed * 1000 + number)
        self._socket = connect(load.port)
        self.reconnected = False  # since the client last looked: its socket is another
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
        """Send the next request. Its times count from `due_s`, by default from now."""
        load, measured = self._load, self._measured
        self._tokens = self._random.randint(*load.tokens)
        self._reader = self._new_reader()
        number = next(self._request_numbers) if load.distinct else 0
        message = request(
            load.kind,
            load.model,
            stream=load.stream,
            tokens=self._tokens,
            prompt=Prompt(load.prompt_bytes, load.inputs, number),
        )
        now_s = self._really_sent_s = time.perf_counter()
        self._sent_s = now_s if due_s is None else due_s
        self._timed = measured.measuring  # its times count
        self._chunks = 0  # that came in the measured time
        self._refused = False
        if load.rate_per_s and self._timed:
            measured.late_s.append(now_s - self._sent_s)
        self.idle = False
        self._socket.sendall(message)

    def _new_reader(self) -> StreamReader | WholeReader:
        kind = self._load.kind
        if embeds(kind):
            return WholeReader(b'"embedding":', self._load.inputs)
        if self._load.stream:
            return StreamReader(text_field(kind), usage=asks_usage(kind), end=stream_end(kind))
        return WholeReader(whole_ending(kind))

    def receive(self) -> None:
        """What has come."""
        data = self._socket.recv(READ_BYTES)
        if not data and self.idle:  # vLLM's server closes connections after 5 s without a request
            self._renew()
            return
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
        chunks, began = reader.chunks, reader.began
        reader.feed(data)
        chunks = reader.chunks - chunks
        measured = self._measured
        if measured.measuring:
            self._chunks += chunks
            measured.chunks += chunks
        if reader.began and not began:
            self._last_text_s = time.perf_counter()
            if self._timed:
                measured.ttft_s.append(self._last_text_s - self._sent_s)
        elif self._load.gaps and chunks > 0:
            now_s = time.perf_counter()
            if measured.measuring:
                measured.gap_s.append(now_s - self._last_text_s)
            self._last_text_s = now_s
        if self._load.gaps and measured.measuring:
            measured.gap_s.extend([0.0] * (chunks - 1))  # they came together

    def _finish(self, reader: StreamReader | WholeReader) -> None:
        measured, now_s = self._measured, time.perf_counter()
        if isinstance(reader, StreamReader):
            self._check_tokens(reader.tokens)
            measured.all_chunks += reader.chunks
            measured.tokens += reader.tokens * self._chunks / reader.chunks
        if self._refused:
            if self._timed:
                measured.refusal_s.append(now_s - self._really_sent_s)
        else:
            self._count_response()
            if self._timed:
                measured.latency_s.append(now_s - self._sent_s)
        self.idle = self.stopping or bool(self._load.rate_per_s)
        if self._load.reconnect:
            self._renew()
        if not self.idle:
            self.send()

    def _renew(self) -> None:
        self._socket.close()
        self._socket = connect(self._load.port)
        self.reconnected = True

    def _count_response(self) -> None:
        self._measured.all_responses += 1
        if self._measured.measuring:
            self._measured.responses += 1
            self._measured.texts += self._load.inputs if embeds(self._load.kind) else 0

    def _check_tokens(self, came: int) -> None:
        if self._load.exact and came != self._tokens:
            raise BadResponse(f"{came} tokens came where {self._tokens} were asked for")
