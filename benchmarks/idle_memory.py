"""How much memory a stream takes that waits for its first token."""

import socket
import time

from benchmarks import process_stat
from benchmarks.connection import chat, connect
from benchmarks.mock_repository import WAITING_MODEL
from benchmarks.server_process import ServerProcess
from benchmarks.summary import slope

_QUIET_S = 0.15
_LONGEST_S = 60.0


def bytes_per_stream(server: ServerProcess, *, streams: int, steps: int = 5) -> float:
    """The slope of the resident set over growing numbers of streams.

    The first step is no point of the slope: it pays for what is made once.
    """
    open_streams: list[socket.socket] = []
    points: list[tuple[float, float]] = []
    try:
        for _ in range(steps + 1):
            open_streams += [_wait_for_token(server.port) for _ in range(streams // steps)]
            _until_quiet(server.pid)
            _none_has_ended(open_streams)
            points.append((len(open_streams), process_stat.resident_bytes(server.pid)))
    finally:
        for each in open_streams:
            each.close()
    return slope(points)


def _wait_for_token(port: int) -> socket.socket:
    connection = connect(port)
    connection.sendall(chat(WAITING_MODEL, stream=True, tokens=16))
    return connection


def _until_quiet(pid: int) -> None:
    """The server has taken all requests: it uses no more CPU."""
    end_s = time.perf_counter() + _LONGEST_S
    before_s = -1.0
    while (now_s := process_stat.cpu_s(pid)) != before_s and time.perf_counter() < end_s:
        before_s = now_s
        time.sleep(_QUIET_S)


def _none_has_ended(connections: list[socket.socket]) -> None:
    for each in connections:
        each.setblocking(False)
        try:
            answer = each.recv(500)
        except BlockingIOError:
            continue
        raise RuntimeError(f"a stream that should wait was answered: {answer!r}")
