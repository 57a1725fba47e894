import pytest

from benchmarks import server_process
from benchmarks.client import Client, difference
from benchmarks.load import Load, Measured


def test_the_client_counts_what_the_floor_sends():
    """Against a server that writes exactly the tokens it is asked for, none is lost or invented."""

    with server_process.floor(None) as floor:
        load = Load(
            port=floor.port,
            server_pid=floor.pid,
            connections=4,
            tokens=(3, 9),
            warm_up_s=0.05,
            measured_s=0.2,
        )
        with Client(load) as client:
            measured = client.run()

    assert measured.responses > 0
    assert measured.response_chunks == measured.tokens
    assert measured.chunks == pytest.approx(measured.tokens, abs=4 * 9)
    assert measured.all_chunks > measured.chunks
    assert measured.ttft_s
    assert min(measured.ttft_s) > 0


def test_measured_is_what_lies_between_two_snapshots():
    """The warm-up counts nowhere."""

    before = Measured(seconds=10.0, server_cpu_s=3.0, chunks=1000, responses=4)
    after = Measured(seconds=12.0, server_cpu_s=4.0, chunks=51_000, responses=10)

    between = difference(before, after)
    assert between.chunks_per_s == 25_000
    assert between.cpu_us_per_chunk == pytest.approx(20)
    assert between.responses == 6


def test_messages_survive_the_way_between_processes():
    """Load and Measured are read as they were written."""

    load = Load(port=1, server_pid=2, connections=3, warm_up_s=0.5, measured_s=1.0, core=0)
    measured = Measured(seconds=1.5, ttft_s=[0.25], chunks=7)

    assert Load.parse(load.dump()) == load
    assert Measured.parse(measured.dump()) == measured
