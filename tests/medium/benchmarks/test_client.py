import os
import shutil
import signal
import threading
import time
from collections.abc import Callable

import pytest

from benchmarks import c_floor, server_process
from benchmarks.client import Client
from benchmarks.load import Load, Measured
from benchmarks.response_reader import BadResponse

pytestmark = pytest.mark.slow


@pytest.fixture(params=["uvloop", "C"])
def floor(request, tmp_path):
    if request.param == "uvloop":
        started = server_process.floor(None)
    elif shutil.which("cc") is None:
        pytest.skip("no C compiler")
    else:
        started = server_process.c_floor(c_floor.build(tmp_path), None)
    with started as running:
        yield running


def load(floor, **options) -> Load:
    usual = {"connections": 4, "tokens": (3, 9), "warm_up_s": 0.05, "measured_s": 0.2}
    return Load(port=floor.port, pids={"server": [floor.pid]}, **{**usual, **options})


def one_of_a_few(holds: Callable[[], bool]) -> bool:
    """For loads of less than a second, in which another program may have the processor."""
    return any(holds() for _ in range(6))


def test_client_counts_what_the_floors_send(floor):
    """Against servers that write exactly the requested tokens, none is lost or invented."""

    with Client(load(floor)) as client:
        measured = client.run()

    assert measured.responses > 0
    # a snapshot may fall between two halves of a chunk, of each stream
    assert measured.chunks == pytest.approx(measured.tokens, abs=2 * 4)
    assert 3 * measured.responses - 4 * 9 <= measured.tokens <= 9 * (measured.responses + 4)
    assert measured.all_chunks > measured.chunks
    assert min(measured.ttft_s) > 0
    assert min(measured.latency_s) >= min(measured.ttft_s)


def test_open_loop_keeps_its_rate(floor):
    """Requests leave at their due time, whatever the responses do, and are timed from then."""

    def keeps_it() -> bool:
        with Client(load(floor, connections=1, rate_per_s=200, measured_s=0.5)) as client:
            measured = client.run()
        assert min(measured.late_s, default=0) >= 0
        return [measured.responses, len(measured.late_s)] == pytest.approx([100, 100], abs=30)

    assert one_of_a_few(keeps_it)


def test_open_loop_includes_the_wait_for_a_stalled_server(floor):
    """Requests fall due while the server stalls, and the latency of each includes its wait."""

    stopped_s = 0.2

    def includes_it() -> bool:
        stall = threading.Timer(0.2, _stall, (floor.pid, stopped_s))
        with Client(load(floor, connections=1, rate_per_s=200, measured_s=0.6)) as client:
            stall.start()
            measured = client.run()
        stall.join()
        waited = [each for each in measured.latency_s if each > stopped_s / 4]
        return len(waited) >= 200 * stopped_s / 2

    assert one_of_a_few(includes_it)


def _stall(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def test_aligned_load_has_complete_answers():
    """It is measured between the ends of two answers, so CPU time and answers match."""

    with (
        server_process.floor(None) as floor,
        Client(load(floor, connections=1, tokens=(2000, 2000), aligned=True)) as client,
    ):
        measured = client.run()

    assert measured.responses >= 1
    assert measured.tokens == pytest.approx(2000 * measured.responses, abs=300)


def test_wrong_number_of_tokens_fails_the_run():
    """An answer that lost tokens must not count as fast. This floor sends one token."""

    with (
        server_process.floor(None) as floor,
        Client(load(floor, tokens=(0, 0))) as client,
        pytest.raises(BadResponse, match="1 tokens came where 0"),
    ):
        client.run()


def test_rates_and_costs_follow_from_the_counts():
    """CPU time is the sum of all the server's processes."""

    measured = Measured(
        seconds=2.0,
        cpu_s={"frontend": 0.25, "engine": 0.75},
        client_cpu_s=0.5,
        machine_cpu_s=1.75,
        chunks=50_000,
        tokens=100_000,
        responses=6,
    )

    assert measured.chunks_per_s == 25_000
    assert measured.cpu_us_per_chunk == pytest.approx(20)
    assert measured.cpu_us_per_token == pytest.approx(10)
    assert measured.tokens_per_chunk == 2
    assert (measured.client_share, measured.others_cpu_s) == (0.25, 0.25)
