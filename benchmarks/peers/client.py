"""The process that makes the load: one thread, raw sockets, epoll.

Reads a Load from stdin, prints Measured. An answer that is not whole ends it with code 1.
"""

import gc
import os
import select
import sys
import time
from dataclasses import dataclass

from benchmarks import process_stat
from benchmarks.peers.connection import Connection
from benchmarks.peers.event_stream import BadResponse
from benchmarks.peers.load import Distribution, Load, Measured, Seen

_DRAIN_S = 120.0  # more than any answer takes


class Client:
    """All connections of one load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._seen = Seen()
        self._poll = select.epoll()
        self._by_fd: dict[int, Connection] = {}
        self._idle: list[Connection] = []
        self._number = 0
        self._draining = False

    def close(self) -> None:
        """End all connections."""
        self._poll.close()
        for connection in self._by_fd.values():
            connection.close()

    def run(self) -> Measured:
        """Warm up, measure, let the last answers run out."""
        begin_s = time.perf_counter() + self._load.warm_up_s
        end_s = begin_s + self._load.measured_s
        due_s = self._due_times(end_s)
        self._serve(due_s, begin_s)
        self._seen.open = True
        before = self._snapshot()
        self._serve(due_s, end_s)
        after = self._snapshot()
        self._seen.open = False
        self._drain()
        return self._measured(before, after)

    def _due_times(self, end_s: float) -> list[float]:
        """When requests are to be sent that no answer sets off; the last comes first.

        A closed loop's streams begin one after the other within the first half of the warm-up:
        answers of one length would all start and end together otherwise.
        """
        load, now_s = self._load, time.perf_counter()
        if load.rate_per_s:
            count = int((end_s - now_s) * load.rate_per_s)
            return [now_s + each / load.rate_per_s for each in range(count)][::-1]
        step_s = load.warm_up_s / 2 / load.connections
        return [now_s + each * step_s for each in range(load.connections)][::-1]

    def _serve(self, due_s: list[float], end_s: float) -> None:
        while (now_s := time.perf_counter()) < end_s:
            while due_s and due_s[-1] <= now_s:
                self._send(self._connection(), due_s.pop())
            next_s = min(due_s[-1], end_s) if due_s else end_s
            self._turn(max(next_s - time.perf_counter(), 0))

    def _turn(self, timeout_s: float) -> None:
        for fd, _ in self._poll.poll(timeout_s):
            connection = self._by_fd[fd]
            if connection.receive():
                self._answered(connection)

    def _answered(self, connection: Connection) -> None:
        if self._load.rate_per_s or self._draining:
            self._idle.append(connection)
        else:
            self._send(connection, time.perf_counter())

    def _send(self, connection: Connection, due_s: float) -> None:
        self._number += 1
        connection.send(self._number, due_s)

    def _connection(self) -> Connection:
        if self._idle:
            return self._idle.pop()
        if len(self._by_fd) >= self._load.connections:
            raise BadResponse(f"{len(self._by_fd)} answers are late: the rate is too high")
        connection = Connection(self._load, self._seen)
        self._by_fd[connection.fileno()] = connection
        self._poll.register(connection.fileno(), select.EPOLLIN)
        return connection

    def _drain(self) -> None:
        self._draining = True
        end_s = time.perf_counter() + _DRAIN_S
        while len(self._idle) < len(self._by_fd):
            if time.perf_counter() > end_s:
                raise BadResponse("answers that did not end")
            self._turn(0.1)

    def _snapshot(self) -> "_Snapshot":
        return _Snapshot(
            seconds=time.perf_counter(),
            cpu_s=process_stat.cpu_s_by_role(self._load.pids),
            client_cpu_s=time.process_time(),
            client_wait_s=process_stat.wait_s(os.getpid()),
            busy_cpu_s=process_stat.machine_cpu_s(),
        )

    def _measured(self, before: "_Snapshot", after: "_Snapshot") -> Measured:
        seen = self._seen
        return Measured(
            seconds=after.seconds - before.seconds,
            cpu_s={role: after.cpu_s[role] - before.cpu_s[role] for role in after.cpu_s},
            client_cpu_s=after.client_cpu_s - before.client_cpu_s,
            client_wait_s=after.client_wait_s - before.client_wait_s,
            busy_cpu_s=after.busy_cpu_s - before.busy_cpu_s,
            tokens=seen.tokens,
            chunks=seen.chunks,
            responses=seen.responses,
            texts=seen.texts,
            ttft=Distribution.of(seen.ttft_s),
            gap=Distribution.of(seen.gap_s),
            latency=Distribution.of(seen.latency_s),
            lateness=Distribution.of(seen.lateness_s),
        )


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The clocks at one end of the window."""

    seconds: float
    cpu_s: dict[str, float]
    client_cpu_s: float
    client_wait_s: float
    busy_cpu_s: float


def main() -> int:
    """Do what stdin says."""
    gc.disable()  # nothing here makes cycles, and a collection would look like a gap
    client = Client(Load.parse(sys.stdin.read()))
    try:
        print(client.run().dump())
    except BadResponse as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
