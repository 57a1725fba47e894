"""CPU time, waiting time and memory of a process, and the cores that it may use."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_CPUCLOCK_SCHED = 2  # of linux/posix-timers.h


def cpu_s(pid: int) -> float:
    """User and system time so far: all threads, also those that have ended.

    From the process's CPU clock, in nanoseconds; `/proc/<pid>/stat` counts in steps of 10 ms.
    Raises OSError if the process does not exist.
    """
    return time.clock_gettime(_cpu_clock(pid))


def cpu_share(pid: int, seconds: float) -> float:
    """How much of a core a process uses in the next seconds, 1 for all of it."""
    before_s, began_s = cpu_s(pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_s(pid) - before_s) / (time.perf_counter() - began_s)


def _cpu_clock(pid: int) -> int:
    """As clock_getcpuclockid(3) numbers it, which Python does not have."""
    return (~pid << 3) | _CPUCLOCK_SCHED


def cpu_s_by_role(pids: Mapping[str, Iterable[int]]) -> dict[str, float]:
    """The sum over the processes of each role."""
    return {role: sum(map(cpu_s, of_role)) for role, of_role in pids.items()}


def machine_cpu_s() -> float:
    """CPU time of all processes so far, with the hypervisor's share."""
    times = psutil.cpu_times()  # user and nice include the guests' time
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal


def parse_wait_ns(schedstat: str) -> int:
    """How long a thread could have run and had no core."""
    return int(schedstat.split()[1])


def wait_s(pid: int) -> float:
    """How long its main thread has waited for a core; 0 where the kernel does not count it."""
    try:
        return parse_wait_ns(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii")) / 1e9
    except FileNotFoundError:
        return 0.0


def wake_ups(pid: int) -> dict[int, int]:
    """How often each thread has waited and then run, by the thread's number."""
    counts = {}
    for thread in psutil.Process(pid).threads():
        status = Path(f"/proc/{pid}/task/{thread.id}/status").read_text(encoding="utf-8")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        counts[thread.id] = int(fields["voluntary_ctxt_switches"])
    return counts


def resident_bytes(pid: int) -> int:
    """Its resident set."""
    return psutil.Process(pid).memory_info().rss


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core the server and which the client has to itself; None: any."""

    server: int | None
    client: int | None

    @classmethod
    def available(cls) -> "Cores":
        """The first two that this process may use; none where there is only one."""
        cores = sorted(os.sched_getaffinity(0))
        return cls(cores[0], cores[1]) if len(cores) > 1 else cls(None, None)


def pin(core: int | None) -> None:
    """This thread, and all that it starts, stays on a core."""
    if core is not None:
        os.sched_setaffinity(0, {core})
