"""What the client does by the clock, whatever the answers do: arrivals and probes.

Both count from the intended time of sending, so that a late answer hides no delay of the next.
"""

import math
import time
from collections.abc import Callable

from benchmarks.connection import READ_BYTES, Caller, connect
from benchmarks.load import Load, Measured
from benchmarks.response_reader import BadResponse, WholeReader

_PROBES = 10
_MOST_CALLERS = 2000


class Arrivals:
    """Sends at fixed intervals, each request on a connection that is free, or on a new one."""

    def __init__(
        self, callers: list[Caller], add: Callable[[], Caller], interval_s: float, left: float
    ) -> None:
        self._callers = callers
        self._add = add
        self._interval_s = interval_s
        self._left = left  # how many requests; inf in an open loop
        self._due_s = time.perf_counter()
        self.stopping = False

    @classmethod
    def of(cls, load: Load, callers: list[Caller], add: Callable[[], Caller]) -> "Arrivals":
        """All requests of an open loop, or the first one of each connection of a closed loop."""
        if load.rate_per_s:
            return cls(callers, add, 1 / load.rate_per_s, math.inf)
        return cls(callers, add, load.spread_s / load.connections, load.connections)

    @property
    def finished(self) -> bool:
        """Nothing will be due."""
        return self.stopping or not self._left

    def remaining_s(self) -> float:
        """Until the next one is due."""
        return max(self._due_s - time.perf_counter(), 0.0)

    def send(self) -> None:
        """All that are due."""
        while not self.finished and time.perf_counter() >= self._due_s:
            self._free().send(self._due_s)
            self._due_s += self._interval_s
            self._left -= 1

    def _free(self) -> Caller:
        for caller in self._callers:
            if caller.idle:
                return caller
        if len(self._callers) >= _MOST_CALLERS:
            raise BadResponse(f"the server falls behind: {_MOST_CALLERS} requests are unanswered")
        return self._add()


class Probe:
    """Asks /health/live."""

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

    @property
    def finished(self) -> bool:
        """Nothing will be due."""
        return self.stopping

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
        self._reader.feed(self._socket.recv(READ_BYTES))
        if self._reader.finished:
            if self._measured.measuring:
                self._measured.probe_s.append(time.perf_counter() - self._due_s)
            self._reader = None
            self._due_s += self._interval_s


def probes(load: Load, measured: Measured) -> list[Probe]:
    """Several that take turns: a late answer must not keep the next question waiting."""
    if not load.probes_per_s:
        return []
    interval_s = 1 / load.probes_per_s
    return [
        Probe(load.port, _PROBES * interval_s, delay_s=number * interval_s, measured=measured)
        for number in range(_PROBES)
    ]
