"""The client against a small test server in this process: what the floors cannot answer."""

import itertools
import json
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from benchmarks.client import Client
from benchmarks.connection import Caller
from benchmarks.load import Load, Measured
from benchmarks.response_reader import BadResponse
from benchmarks.summary import percentile

TOKENS = 6
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = b'{"choices":[],"usage":{"completion_tokens":%d}}'
CONTENT = b'{"choices":[{"delta":{"content":"ab"}}]}'
FINISH = b'{"choices":[{"delta":{},"finish_reason":"length"}]}'


def stream(*, tokens: int = TOKENS, end: bytes = b"[DONE]") -> list[bytes]:
    """Three chunks with content, two tokens each."""
    frames = [CONTENT] * 3 + [FINISH, USAGE % tokens, end]
    parts = [b"data: %b\n\n" % each for each in frames]
    return [HEAD, *(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))]


def vectors(count: int) -> list[bytes]:
    body = json.dumps({"data": [{"embedding": [1.0]}] * count}).encode()
    return [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)]


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    bodies: list[dict[str, Any]]
    pieces: list[bytes]


class _Handler(socketserver.StreamRequestHandler):
    server: _Server
    disable_nagle_algorithm = True

    def handle(self) -> None:
        while head := self._head():
            length = next(
                int(line.split(b":")[1]) for line in head if line.startswith(b"Content-L")
            )
            self.server.bodies.append(json.loads(self.rfile.read(length)))
            for piece in self.server.pieces:
                self.wfile.write(piece)

    def _head(self) -> list[bytes]:
        lines = []
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            lines.append(line)
        return lines


@contextmanager
def serving(pieces: list[bytes]) -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.bodies, server.pieces = [], pieces
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def measure(server: _Server, **values: Any) -> Measured:
    given: dict[str, Any] = {
        "kind": "question",
        "distinct": True,
        "connections": 3,
        "tokens": (TOKENS, TOKENS),
        "gaps": True,
        "spread_s": 0.05,
        "warm_up_s": 0.1,
        "measured_s": 0.3,
    } | values
    pids = {"frontend": [os.getpid()], "engine": []}
    load = Load(port=server.server_address[1], pids=pids, model="peer", **given)
    with Client(load) as client:
        return client.run()


def test_closed_loop_counts_tokens_by_usage():
    """Three chunks have six tokens; the ends of the window may cut an answer of each connection."""

    with serving(stream()) as server:
        # Of some loads, each as short as another program may have the processor
        loads = (measure(server) for _ in range(6))
        measured = next((each for each in loads if each.responses > 10), None)

    assert measured is not None
    assert measured.tokens == pytest.approx(2 * measured.chunks)
    assert measured.chunks == pytest.approx(3 * measured.responses, abs=9)
    assert 0 < percentile(measured.ttft_s, 50) <= percentile(measured.latency_s, 50)
    assert len(server.bodies) >= measured.responses
    assert measured.cpu_s["frontend"] > 0
    assert measured.cpu_s["engine"] == 0


def test_prompts_differ():
    """A prefix cache matches no whole prompt."""

    with serving(stream()) as server:
        measure(server, connections=2)

    prompts = [json.dumps(body["messages"]) for body in server.bodies]
    assert len(set(prompts)) == len(prompts) > 2


def test_chunks_that_come_together_have_no_gap():
    """One gap for each chunk after an answer's first, whether or not it came alone."""

    with serving([b"".join(stream())]) as server:
        measured = measure(server)

    assert measured.gap_s == [0.0] * (measured.chunks * 2 // 3)


def test_open_loop_keeps_its_schedule():
    """It sends as many requests as the rate says, whatever the answers do."""

    def keeps_it() -> bool:
        with serving(stream()) as server:
            try:
                measured = measure(server, rate_per_s=50.0, connections=1, measured_s=0.5)
            except BadResponse:  # the server's thread got no processor
                return False
        return (
            len(server.bodies) == pytest.approx(30, abs=2)
            and len(measured.ttft_s) == pytest.approx(25, abs=3)
            and percentile(measured.late_s, 50) < percentile(measured.ttft_s, 50)
        )

    # Another program may have the processor as long as one load takes
    assert any(keeps_it() for _ in range(6))


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (stream(end=b"{}"), r"without \[DONE\]"),
        (stream(tokens=5), "5 tokens came where 6"),
        ([b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"], "500"),
    ],
)
def test_one_failed_answer_ends_the_load(pieces, message):
    """A failed stream must not count as a fast one."""

    with serving(pieces) as server, pytest.raises(BadResponse, match=message):
        measure(server)


def test_embeddings_count_texts():
    """Each answer counts the texts of its request."""

    with serving(vectors(4)) as server:
        measured = measure(server, kind="embeddings_base64", inputs=4)

    assert measured.texts == 4 * measured.responses > 0
    assert {(len(body["input"]), body["encoding_format"]) for body in server.bodies} == {
        (4, "base64")
    }
    assert len(measured.latency_s) >= measured.responses - 3


def test_connection_that_ends_without_a_request_is_opened_again():
    """Servers close idle connections; one that ends during a request fails the run."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        load = Load(port=port, pids={"frontend": [os.getpid()]}, connections=1,
                    rate_per_s=1.0, warm_up_s=0, measured_s=0)  # fmt: skip
        with closing(Caller(load, 0, Measured(), itertools.count())) as caller:
            listener.accept()[0].close()
            caller.receive()
            assert caller.reconnected

            caller.send()
            connection, _ = listener.accept()
            assert connection.recv(1 << 16).startswith(b"POST /v1/chat/completions")
            connection.close()
            with pytest.raises(BadResponse, match="the server closed a connection"):
                caller.receive()
