"""Sampling of requests."""

import json

import pytest

from openai_frontend.middleware.trusted_hosts import HEALTH_PATHS
from openai_frontend.request_context.record import RequestRecord
from openai_frontend.tracing import TraceContext, Tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Kept:
    """Keeps the records."""

    lost = 0

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def put(self, record: RequestRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.records.clear()


def sampled(tracing: Tracing, caller: TraceContext | None) -> bool:
    record = RequestRecord("req_1")
    tracing.begin(record, caller)
    return record.core_context is not None


@pytest.mark.parametrize("decision", [True, False])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_caller_decides_about_sampling(decision, ratio):
    """A request with a trace context is sampled if its caller is."""
    tracing = Tracing(Kept(), ratio=ratio, follows_caller=True)

    assert sampled(tracing, TraceContext(TRACE, SPAN, decision, "")) is decision


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_ratio_decides_if_callers_are_not_trusted(ratio):
    """The request keeps the caller's trace id."""
    tracing = Tracing(Kept(), ratio=ratio, follows_caller=False)
    record = RequestRecord("req_1")
    tracing.begin(record, TraceContext(TRACE, SPAN, True, ""))

    assert (record.core_context is not None) is (ratio == 1.0)
    assert (record.trace_id, record.parent_id) == (TRACE, SPAN)


def test_ratio_of_requests_without_a_caller():
    """That share of them is sampled."""
    tracing = Tracing(Kept(), ratio=0.25, follows_caller=True)

    assert 800 < sum(sampled(tracing, None) for _ in range(4000)) < 1200


def test_trace_context_for_triton():
    """Backends get the request's span as parent in W3C headers."""
    tracing = Tracing(Kept())
    record = RequestRecord("req_1")
    tracing.begin(record, TraceContext(TRACE, SPAN, True, "a=1"))

    assert record.span_id not in (None, SPAN)
    assert json.loads(record.core_context or "") == {
        "traceparent": f"00-{TRACE}-{record.span_id}-01",
        "tracestate": "a=1",
    }


@pytest.mark.parametrize("decision", [True, False])
def test_only_sampled_records_are_exported(decision):
    """A record that is not sampled is dropped."""
    kept = Kept()
    tracing = Tracing(kept)
    record = RequestRecord("req_1")
    tracing.begin(record, TraceContext(TRACE, SPAN, decision, ""))
    tracing.end(record)

    assert kept.records == ([record] if decision else [])


@pytest.mark.parametrize(
    ("route", "spans"), [*((path, 0) for path in sorted(HEALTH_PATHS)), ("/v1/models", 1)]
)
def test_health_checks_are_not_traced(route, spans):
    """Unless the caller traces them."""
    kept = Kept()
    tracing = Tracing(kept)
    record = RequestRecord("req_1", route=route)
    tracing.begin(record, None)
    tracing.end(record)

    assert len(kept.records) == spans
