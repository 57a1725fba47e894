import os
import time

import psutil
import pytest

from benchmarks import process_stat


def test_wait_is_the_second_number():
    """The numbers are time on a CPU, time waiting for one, and time slices."""

    assert process_stat.parse_wait_ns("152194 2636284 2\n") == 2636284


def test_running_process_is_read():
    """What the kernel counts for this process matches what the process knows itself."""

    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass

    assert abs(process_stat.cpu_s(os.getpid()) - time.process_time()) < 0.1
    assert process_stat.resident_bytes(os.getpid()) > 1_000_000
    assert process_stat.wait_s(os.getpid()) >= 0


def test_cpu_time_is_summed_by_role():
    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass
    pid = os.getpid()
    found = process_stat.cpu_s_by_role({"frontend": [pid], "engine": [pid, pid], "none": []})

    assert found["frontend"] > 0.03
    assert found["engine"] >= 2 * found["frontend"]
    assert found["none"] == 0


def test_cpu_time_without_waiting_counts_as_busy(monkeypatch):
    """user, nice, system, irq, softirq and steal, but not idle, iowait or the guests' share."""

    times = psutil.cpu_times()._replace(
        user=1.0, nice=0.2, system=0.3, idle=40.0, iowait=5.0, irq=0.06, softirq=0.07, steal=0.08,
        guest=0.9, guest_nice=0.5,
    )  # fmt: skip
    monkeypatch.setattr(psutil, "cpu_times", lambda: times)

    assert process_stat.machine_cpu_s() == pytest.approx(1.71)


def test_server_and_client_have_different_cores(monkeypatch):
    """The first two cores that this process may use, whatever their numbers; None with one core."""

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 3, 5})
    assert process_stat.Cores.available() == process_stat.Cores(3, 5)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert process_stat.Cores.available() == process_stat.Cores(None, None)
