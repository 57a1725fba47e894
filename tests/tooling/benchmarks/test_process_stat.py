import os
import time

from benchmarks import process_stat

STAT = (
    "4242 (a) b (c)) S 1 4242 4242 0 -1 4194560 5217 0 12 0 310 45 0 0 20 0 9 0 88 1253 7 "
    "18446744073709551615"
)


def test_cpu_ticks_are_user_and_system_time():
    """A process's name may contain brackets and spaces; the fields after it count."""

    assert process_stat.parse_cpu_ticks(STAT) == 310 + 45


def test_wait_is_the_second_number():
    """The numbers are time on a CPU, time waiting for one, and time slices."""

    assert process_stat.parse_wait_ns("152194 2636284 2\n") == 2636284


def test_resident_pages_are_the_second_number():
    """The first number is the address space, which is not used."""

    assert process_stat.parse_resident_pages("5000 1200 300 1 0 900 0\n") == 1200


def test_running_process_is_read():
    """The kernel's files of this process match what the process knows itself."""

    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass

    assert abs(process_stat.cpu_s(os.getpid()) - time.process_time()) < 0.1
    assert process_stat.resident_bytes(os.getpid()) > 1_000_000
    assert process_stat.wait_s(os.getpid()) >= 0


def test_server_and_client_have_different_cores(monkeypatch):
    """The first two cores that this process may use, whatever their numbers; None with one core."""

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 3, 5})
    assert process_stat.Cores.available() == process_stat.Cores(3, 5)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert process_stat.Cores.available() == process_stat.Cores(None, None)
