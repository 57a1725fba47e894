"""The client against a small test server in this process."""

import json
import os
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.peers.client import Client
from benchmarks.peers.event_stream import BadResponse
from benchmarks.peers.load import EMBEDDINGS, Distribution, Load, Measured, percentile
from benchmarks.peers.processes import FRONTEND

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
        "connections": 3,
        "tokens": TOKENS,
        "warm_up_s": 0.1,
        "measured_s": 0.3,
    } | values
    pids = {FRONTEND: [os.getpid()]}
    load = Load(port=server.server_address[1], pids=pids, model="peer", **given)
    client = Client(load)
    try:
        return client.run()
    finally:
        client.close()


def test_closed_loop_counts_tokens_by_usage():
    """Three chunks have six tokens; the ends of the window may cut an answer of each connection."""

    with serving(stream()) as server:
        measured = measure(server)

    assert measured.responses > 10
    assert measured.tokens == pytest.approx(2 * measured.chunks)
    assert measured.chunks == pytest.approx(3 * measured.responses, abs=9)
    assert measured.ttft is not None
    assert 0 < measured.ttft.p50 <= measured.latency.p50
    assert len(server.bodies) >= measured.responses
    assert measured.cpu_s[FRONTEND] > 0


def test_prompts_differ_and_request_usage():
    """A prefix cache matches no whole prompt, and no answer ends early."""

    with serving(stream()) as server:
        measure(server, connections=1)

    prompts = [json.dumps(body["messages"]) for body in server.bodies]
    assert len(set(prompts)) == len(prompts)
    first = server.bodies[0]
    assert first["stream_options"] == {"include_usage": True}
    assert (first["max_tokens"], first["ignore_eos"], first["temperature"]) == (TOKENS, True, 0)


def test_open_loop_keeps_its_schedule():
    """It sends as many requests as the rate says, whatever the answers do."""

    with serving(stream()) as server:
        measured = measure(server, rate_per_s=50.0, connections=20, measured_s=0.5)

    assert len(server.bodies) == pytest.approx(30, abs=2)
    assert measured.ttft.count == pytest.approx(25, abs=3)
    assert measured.lateness.p50 < measured.ttft.p50


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (stream(end=b"{}"), r"without: \[DONE\]"),
        (stream(tokens=5), "5 tokens, not 6"),
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
        measured = measure(server, kind=EMBEDDINGS, batch=4, encoding="base64")

    assert measured.texts == 4 * measured.responses > 0
    assert {(len(body["input"]), body["encoding_format"]) for body in server.bodies} == {
        (4, "base64")
    }
    assert measured.ttft is not None


def test_messages_survive_serialization_between_processes():
    """Load and Measured equal what was written."""

    load = Load(
        port=1, pids={"engine": [2]}, model="m", connections=3, warm_up_s=0.5, measured_s=1.0
    )
    measured = Measured(
        seconds=1.0,
        cpu_s={"engine": 0.5},
        client_cpu_s=0.25,
        busy_cpu_s=1.0,
        tokens=10.0,
        chunks=5,
        responses=1,
        ttft=Distribution.of([0.002, 0.001]),
    )

    assert Load.parse(load.dump()) == load
    assert Measured.parse(measured.dump()) == measured
    assert (measured.client_share, measured.others_cpu_s) == (0.25, 0.25)


def test_percentile_is_one_of_the_values():
    """The smallest value that its share of all values does not exceed."""

    assert [percentile([1, 2, 3, 4], share) for share in (0.0, 0.25, 0.5, 0.51, 1.0)] == [
        1, 1, 2, 3, 4,
    ]  # fmt: skip
    assert Distribution.of([0.003, 0.001, 0.002]) == Distribution(3, 2.0, 3.0, 3.0, 3.0)
    assert Distribution.of([]) is None
