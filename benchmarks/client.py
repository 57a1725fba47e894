"""The process that makes the load: one thread, raw sockets, epoll.

Reads a Load from stdin, prints Measured.
"""

import select
import sys
import time
from copy import copy
from types import TracebackType

from benchmarks import process_stat
from benchmarks.connection import ChatConnection, Probe
from benchmarks.load import Load, Measured

_PROBES = 10
_DRAIN_S = 60.0  # more than any answer takes


class Client:
    """All connections of one load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._seen = Measured()
        self._chats = [ChatConnection(load, each, self._seen) for each in range(load.connections)]
        self._probes = _probes(load, self._seen)
        connections: list[ChatConnection | Probe] = [*self._chats, *self._probes]
        self._by_fd = {each.fileno(): each for each in connections}
        self._poll = select.epoll()
        for fd in self._by_fd:
            self._poll.register(fd, select.EPOLLIN)

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

    def run(self) -> Measured:
        """Warms up, measures, lets the last answers run out."""
        for chat in self._chats:
            chat.send()
        self._until(time.perf_counter() + self._load.warm_up_s)
        before = self._snapshot()
        self._seen.ttft_s.clear()
        self._seen.probe_s.clear()
        self._until(time.perf_counter() + self._load.measured_s)
        after = self._snapshot()
        self._drain()
        measured = difference(before, after)
        measured.all_chunks, measured.all_responses = self._seen.chunks, self._seen.responses
        return measured

    def _snapshot(self) -> Measured:
        seen = copy(self._seen)
        seen.ttft_s, seen.probe_s = seen.ttft_s.copy(), seen.probe_s.copy()
        seen.seconds = time.perf_counter()
        seen.server_cpu_s = process_stat.cpu_s(self._load.server_pid)
        seen.server_wait_s = process_stat.wait_s(self._load.server_pid)
        seen.client_cpu_s = time.process_time()
        return seen

    def _until(self, end_s: float) -> None:
        while (remaining_s := end_s - time.perf_counter()) > 0:
            self._turn(remaining_s)

    def _turn(self, timeout_s: float) -> None:
        for probe in self._probes:
            probe.send()
            timeout_s = min(timeout_s, probe.remaining_s())
        for fd, _ in self._poll.poll(timeout_s):
            self._by_fd[fd].receive()

    def _drain(self) -> None:
        end_s = time.perf_counter() + _DRAIN_S
        for each in self._by_fd.values():
            each.stopping = True
        while not all(each.idle for each in self._by_fd.values()):
            if time.perf_counter() > end_s:
                raise TimeoutError("answers did not end")
            self._turn(0.1)


def _probes(load: Load, measured: Measured) -> list[Probe]:
    """Several that take turns: a late answer must not keep the next question waiting."""
    if not load.probes_per_s:
        return []
    interval_s = 1 / load.probes_per_s
    return [
        Probe(load.port, _PROBES * interval_s, delay_s=number * interval_s, measured=measured)
        for number in range(_PROBES)
    ]


def difference(before: Measured, after: Measured) -> Measured:
    """What happened between two snapshots; the lists hold that already."""
    return Measured(
        seconds=after.seconds - before.seconds,
        server_cpu_s=after.server_cpu_s - before.server_cpu_s,
        server_wait_s=after.server_wait_s - before.server_wait_s,
        client_cpu_s=after.client_cpu_s - before.client_cpu_s,
        chunks=after.chunks - before.chunks,
        responses=after.responses - before.responses,
        tokens=after.tokens - before.tokens,
        response_chunks=after.response_chunks - before.response_chunks,
        ttft_s=after.ttft_s,
        probe_s=after.probe_s,
    )


def main() -> None:
    """Does what stdin says."""
    load = Load.parse(sys.stdin.read())
    process_stat.pin(load.core)
    with Client(load) as client:
        print(client.run().dump())


if __name__ == "__main__":
    main()
