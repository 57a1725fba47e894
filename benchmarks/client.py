"""The process that makes the load: one thread, raw sockets, epoll.

Reads a Load from stdin, prints Measured. A bad response ends it with code 1.
"""

import gc
import itertools
import os
import select
import sys
import time
from dataclasses import dataclass
from types import TracebackType

from benchmarks import process_stat
from benchmarks.connection import Caller
from benchmarks.idle_streams import IdleStreams
from benchmarks.load import Load, Measured
from benchmarks.response_reader import BadResponse
from benchmarks.schedule import Arrivals, Probe, probes

_LONGEST_ANSWER_S = 120.0


@dataclass(frozen=True, slots=True)
class _Clocks:
    """All clocks at one end of the measured time."""

    now_s: float
    cpu_s: dict[str, float]
    server_wait_s: float
    client_cpu_s: float
    client_wait_s: float
    machine_cpu_s: float

    @classmethod
    def read(cls, load: Load) -> "_Clocks":
        return cls(
            now_s=time.perf_counter(),
            cpu_s=process_stat.cpu_s_by_role(load.pids),
            server_wait_s=process_stat.wait_s(load.server_pid),
            client_cpu_s=time.process_time(),
            client_wait_s=process_stat.wait_s(os.getpid()),
            machine_cpu_s=process_stat.machine_cpu_s(),
        )


class Client:
    """All connections of one load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._measured = Measured()
        self._poll = select.epoll()
        self._by_fd: dict[int, Caller | Probe] = {}
        self._callers: list[Caller] = []
        self._request_numbers = itertools.count(load.first_number)
        for _ in range(load.connections):
            self._add_caller()
        self._scheduled: list[Arrivals | Probe] = []
        for probe in probes(load, self._measured):
            self._watch(probe)
            self._scheduled.append(probe)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._poll.close()
        for each in self._by_fd.values():
            each.close()

    def _add_caller(self) -> Caller:
        caller = Caller(self._load, len(self._callers), self._measured, self._request_numbers)
        self._callers.append(caller)
        self._watch(caller)
        return caller

    def _watch(self, connection: Caller | Probe) -> None:
        self._by_fd[connection.fileno()] = connection
        self._poll.register(connection.fileno(), select.EPOLLIN)

    def run(self) -> Measured:
        """Warms up, measures, lets the last answers run out."""
        with IdleStreams(self._load.port, self._load.server_pid) as idle:
            idle.add(self._load.idle)
            self._scheduled.append(Arrivals.of(self._load, self._callers, self._add_caller))
            self._measure()
            if self._load.drain:
                self._drain()
            idle.check()
        return self._measured

    def _measure(self) -> None:
        self._until(time.perf_counter() + self._load.warm_up_s)
        before = _Clocks.read(self._load)
        self._measured.measuring = True
        self._until(before.now_s + self._load.measured_s)
        if self._load.drain:
            self._until_enough_responses()
        after = _Clocks.read(self._load)
        self._measured.measuring = False
        self._take_clocks(before, after)

    def _take_clocks(self, before: _Clocks, after: _Clocks) -> None:
        measured = self._measured
        measured.seconds = after.now_s - before.now_s
        measured.cpu_s = {role: after.cpu_s[role] - before.cpu_s[role] for role in after.cpu_s}
        measured.server_wait_s = after.server_wait_s - before.server_wait_s
        measured.client_cpu_s = after.client_cpu_s - before.client_cpu_s
        measured.client_wait_s = after.client_wait_s - before.client_wait_s
        measured.machine_cpu_s = after.machine_cpu_s - before.machine_cpu_s

    def _until(self, end_s: float) -> None:
        while (remaining_s := end_s - time.perf_counter()) > 0:
            self._turn(remaining_s)
        if self._load.aligned:
            responses, end_s = self._measured.all_responses, time.perf_counter() + _LONGEST_ANSWER_S
            while self._measured.all_responses == responses:
                self._turn_before(end_s)

    def _until_enough_responses(self) -> None:
        """On a busy machine a short load may end before any answer, and would have no times."""
        end_s = time.perf_counter() + _LONGEST_ANSWER_S
        while self._measured.responses < self._load.least_responses:
            self._turn_before(end_s)

    def _drain(self) -> None:
        for stopped in (*self._scheduled, *self._callers):
            stopped.stopping = True
        end_s = time.perf_counter() + _LONGEST_ANSWER_S
        while not all(each.idle for each in self._by_fd.values()):
            self._turn_before(end_s)

    def _turn_before(self, end_s: float) -> None:
        if time.perf_counter() > end_s:
            raise BadResponse(f"answers did not end within {_LONGEST_ANSWER_S:.0f} s")
        self._turn(0.1)

    def _turn(self, timeout_s: float) -> None:
        for scheduled in self._scheduled:
            scheduled.send()
            timeout_s = min(timeout_s, scheduled.remaining_s())
        # epoll waits for whole milliseconds, which would make all that is scheduled late
        if self._scheduled:
            select.select([self._poll.fileno()], [], [], timeout_s)
            timeout_s = 0
            self._scheduled = [each for each in self._scheduled if not each.finished]
        for fd, _ in self._poll.poll(timeout_s):
            connection = self._by_fd[fd]
            connection.receive()
            if isinstance(connection, Caller) and connection.reconnected:
                del self._by_fd[fd]  # epoll forgot it when it was closed
                self._watch(connection)
                connection.reconnected = False


def main() -> int:
    """Does what stdin says."""
    gc.disable()  # nothing here makes cycles, and a collection would look like a gap
    load = Load.parse(sys.stdin.read())
    process_stat.pin(load.core)
    try:
        with Client(load) as client:
            print(client.run().dump())
    except BadResponse as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
