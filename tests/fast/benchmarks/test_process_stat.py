import os
import threading
import time

import psutil
import pytest

from benchmarks import process_stat


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


def test_cpu_time_is_exact_and_that_of_all_threads():
    def work() -> None:
        end_s = time.thread_time() + 0.005
        while time.thread_time() < end_s:
            pass

    before_s = process_stat.cpu_s(os.getpid())
    for _ in range(3):  # they have ended when the clock is read
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    used_s = process_stat.cpu_s(os.getpid()) - before_s

    assert used_s >= 0.015
    assert time.process_time() <= process_stat.cpu_s(os.getpid()) <= time.process_time()


def test_cpu_time_of_no_process():
    most = 2**22  # of PIDs, in Linux

    with pytest.raises(OSError, match="Invalid argument"):
        process_stat.cpu_s(most + 1)
