"""CPU time, waiting time and memory of a process, as the kernel counts them."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def parse_cpu_ticks(stat: str) -> int:
    """utime + stime of /proc/<pid>/stat: all threads, those that have ended too."""
    after_name = stat.rpartition(")")[2].split()  # a process's name may hold spaces and brackets
    return int(after_name[11]) + int(after_name[12])


def parse_wait_ns(schedstat: str) -> int:
    """How long a thread could have run and had no core."""
    return int(schedstat.split()[1])


def parse_resident_pages(statm: str) -> int:
    """The resident set of /proc/<pid>/statm."""
    return int(statm.split()[1])


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    return parse_cpu_ticks(_read(pid, "stat")) / _TICKS_PER_S


def wait_s(pid: int) -> float:
    """How long its main thread has waited for a core; 0 where the kernel does not count it."""
    try:
        return parse_wait_ns(_read(pid, "schedstat")) / 1e9
    except FileNotFoundError:
        return 0.0


def resident_bytes(pid: int) -> int:
    """Its resident set."""
    return parse_resident_pages(_read(pid, "statm")) * _PAGE_BYTES


def _read(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(encoding="ascii", errors="replace")


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core the server and which the client has to itself; None: as the kernel likes."""

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
