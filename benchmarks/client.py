"""The process that makes the load: one thread, raw sockets, epoll.

Reads a Load from stdin, prints Measured.
"""

import select
import sys
import time
from copy import copy
from types import TracebackType

from benchmarks import process_stat
from benchmarks.connection import Caller
from benchmarks.idle_streams import IdleStreams
from benchmarks.load import Load, Measured, difference
from benchmarks.schedule import OpenLoop, Probe, probes

_LONGEST_ANSWER_S = 60.0


class Client:
    """All connections of one load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._seen = Measured()
        self._poll = select.epoll()
        self._by_fd: dict[int, Caller | Probe] = {}
        self._callers: list[Caller] = []
        for _ in range(load.connections):
            self._add_caller()
        self._scheduled: list[OpenLoop | Probe] = []
        for probe in probes(load, self._seen):
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
        caller = Caller(self._load, len(self._callers), self._seen)
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
            self._begin()
            measured = self._measure()
            if self._load.drain:
                self._drain()
            idle.check()
        measured.all_chunks, measured.all_responses = self._seen.chunks, self._seen.responses
        return measured

    def _begin(self) -> None:
        if self._load.rate_per_s:
            self._scheduled.append(OpenLoop(self._load, self._callers, self._add_caller))
        else:
            for caller in self._callers:
                caller.send()

    def _measure(self) -> Measured:
        self._until(time.perf_counter() + self._load.warm_up_s)
        before = self._snapshot()
        for times in (self._seen.ttft_s, self._seen.latency_s, self._seen.late_s):
            times.clear()
        self._seen.gap_s.clear()
        self._seen.probe_s.clear()
        self._seen.refusal_s.clear()
        self._until(time.perf_counter() + self._load.measured_s)
        return difference(before, self._snapshot())

    def _snapshot(self) -> Measured:
        seen = copy(self._seen)
        seen.ttft_s, seen.latency_s = seen.ttft_s.copy(), seen.latency_s.copy()
        seen.late_s, seen.gap_s = seen.late_s.copy(), seen.gap_s.copy()
        seen.probe_s, seen.refusal_s = seen.probe_s.copy(), seen.refusal_s.copy()
        seen.seconds = time.perf_counter()
        seen.server_cpu_s = process_stat.cpu_s(self._load.server_pid)
        seen.server_wait_s = process_stat.wait_s(self._load.server_pid)
        seen.client_cpu_s = time.process_time()
        return seen

    def _until(self, end_s: float) -> None:
        while (remaining_s := end_s - time.perf_counter()) > 0:
            self._turn(remaining_s)
        if self._load.aligned:
            responses, end_s = self._seen.responses, time.perf_counter() + _LONGEST_ANSWER_S
            while self._seen.responses == responses:
                self._turn_before(end_s)

    def _drain(self) -> None:
        for scheduled in self._scheduled:
            scheduled.stopping = True
        for caller in self._callers:
            caller.stopping = True
        end_s = time.perf_counter() + _LONGEST_ANSWER_S
        while not all(each.idle for each in self._by_fd.values()):
            self._turn_before(end_s)

    def _turn_before(self, end_s: float) -> None:
        if time.perf_counter() > end_s:
            raise TimeoutError("answers did not end")
        self._turn(0.1)

    def _turn(self, timeout_s: float) -> None:
        for scheduled in self._scheduled:
            scheduled.send()
            timeout_s = min(timeout_s, scheduled.remaining_s())
        # epoll waits for whole milliseconds, which would make all that is scheduled late
        if self._scheduled:
            select.select([self._poll.fileno()], [], [], timeout_s)
            timeout_s = 0
        for fd, _ in self._poll.poll(timeout_s):
            self._by_fd[fd].receive()


def main() -> None:
    """Does what stdin says."""
    load = Load.parse(sys.stdin.read())
    process_stat.pin(load.core)
    with Client(load) as client:
        print(client.run().dump())


if __name__ == "__main__":
    main()
