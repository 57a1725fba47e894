"""Spans that cannot be exported."""

import time

import pytest

from openai_frontend.request_context.record import RequestRecord
from openai_frontend.tracing.attributes import ServerAddress
from openai_frontend.tracing.exporter import MAX_RECORDS, Exporter
from tests.medium.tracing.collector import Collector

ADDRESS = ServerAddress("127.0.0.1", 9000)


def record(number: int = 1) -> RequestRecord:
    made = RequestRecord(f"req_{number}", trace_id="a" * 32, span_id=f"{number:016x}")
    made.method, made.route, made.end_ns = "GET", "/v1/models", made.now_ns()
    return made


def test_unreachable_collector() -> None:
    """Spans are dropped and counted, logged once per batch, and `close` does not wait for long."""
    exporter = Exporter("http://127.0.0.1:9", ADDRESS, send_s=0.3)
    for number in range(1, 4):
        exporter.put(record(number))
    begun_s = time.monotonic()
    exporter.close()

    assert time.monotonic() - begun_s < 20  # OTLP's own retries take a minute
    assert exporter.lost == 3


def test_collector_that_rejects_spans(caplog: pytest.LogCaptureFixture) -> None:
    """An error response drops the spans too."""
    with Collector(status=400) as collector:
        exporter = Exporter(collector.url, ADDRESS, send_s=0.3)
        exporter.put(record())
        exporter.close()

    assert exporter.lost == 1
    assert "dropped the spans of 1 requests" in caplog.messages


@pytest.mark.slow
def test_full_queue_drops_records() -> None:
    """`put` never blocks; records that do not fit into the queue are counted."""
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


def test_close_exports_queued_records() -> None:
    """Records put before `close` are exported."""
    with Collector() as collector:
        exporter = Exporter(collector.url, ADDRESS)
        for number in range(1, 10):
            exporter.put(record(number))
        exporter.close()

    assert {int.from_bytes(span.span_id) for span in collector.spans} == set(range(1, 10))
