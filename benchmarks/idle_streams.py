"""Streams that wait for their first token as long as they are open."""

import socket
import time
from types import TracebackType

from benchmarks import process_stat
from benchmarks.connection import connect
from benchmarks.request import WAITING_MODEL, request

_QUIET_S = 0.15
_IDLE_SHARE = 0.03  # of a core
_LONGEST_S = 60.0


class IdleStreams:
    """`with IdleStreams(port, pid) as idle:`, which hangs up at its end."""

    def __init__(self, port: int, server_pid: int) -> None:
        self._port = port
        self._server_pid = server_pid
        self._open: list[socket.socket] = []

    def __enter__(self) -> "IdleStreams":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._open:
            return
        for each in self._open:
            each.close()
        if error is None:
            until_quiet(self._server_pid)  # what comes next does not pay for their end

    def __len__(self) -> int:
        return len(self._open)

    def add(self, streams: int) -> None:
        """Opens more, and waits until the server has taken them."""
        if not streams:
            return
        message = request("chat", WAITING_MODEL, stream=True, tokens=16)
        for _ in range(streams):
            connection = connect(self._port)
            connection.sendall(message)
            self._open.append(connection)
        until_quiet(self._server_pid)
        self.check()

    def check(self) -> None:
        """Raises where one was answered: it would be none that waits."""
        for each in self._open:
            each.setblocking(False)
            try:
                answer = each.recv(500)
            except BlockingIOError:
                continue
            raise RuntimeError(f"a stream that should wait was answered: {answer!r}")


def until_quiet(pid: int) -> None:
    """Until a process uses next to no CPU."""
    end_s = time.perf_counter() + _LONGEST_S
    while process_stat.cpu_share(pid, _QUIET_S) >= _IDLE_SHARE and time.perf_counter() < end_s:
        pass
