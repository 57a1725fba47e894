"""What becomes of spans that no collector takes."""

import time

import pytest

from openai_frontend.request_record import RequestRecord
from openai_frontend.tracing.attributes import ServerAddress
from openai_frontend.tracing.exporter import MAX_RECORDS, Exporter
from tests.tracing.collector import Collector

ADDRESS = ServerAddress("127.0.0.1", 9000)


def record(number: int = 1) -> RequestRecord:
    made = RequestRecord(f"req_{number}", trace_id="a" * 32, span_id=f"{number:016x}")
    made.method, made.route, made.end_ns = "GET", "/v1/models", made.now_ns()
    return made


def test_collector_that_is_away() -> None:
    """The spans are lost and counted, the log tells of it once for a batch, and the end waits no
    longer than it may.
    """
    exporter = Exporter("http://127.0.0.1:9", ADDRESS, send_s=0.3)
    for number in range(1, 4):
        exporter.put(record(number))
    begun_s = time.monotonic()
    exporter.close()

    assert time.monotonic() - begun_s < 5
    assert exporter.lost == 3


def test_collector_that_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """The same where it answers with an error."""
    with Collector(status=400) as collector:
        exporter = Exporter(collector.url, ADDRESS, send_s=0.3)
        exporter.put(record())
        exporter.close()

    assert exporter.lost == 1
    assert "dropped the spans of 1 requests" in caplog.messages


def test_too_many() -> None:
    """Where the collector is slower than requests come, putting blocks nobody, and what finds no
    room is counted.
    """
    with Collector(delay_s=0.2) as collector:
        exporter = Exporter(collector.url, ADDRESS)
        begun_s = time.thread_time()  # the exporter's own thread is at work meanwhile
        for number in range(1, MAX_RECORDS + 2000):
            exporter.put(record(number))
        spent_s = time.thread_time() - begun_s
        lost = exporter.lost
        exporter.close()

    assert lost > 0
    assert spent_s < 1
    assert len(collector.spans) + exporter.lost == MAX_RECORDS + 1999


def test_close_sends_what_waits() -> None:
    """What was put before the end is sent."""
    with Collector() as collector:
        exporter = Exporter(collector.url, ADDRESS)
        for number in range(1, 10):
            exporter.put(record(number))
        exporter.close()

    assert {int.from_bytes(span.span_id) for span in collector.spans} == set(range(1, 10))
