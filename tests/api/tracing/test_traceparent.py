"""W3C Trace Context headers."""

import json
import logging

import pytest
from opentelemetry.sdk.resources import Resource

from openai_frontend.request_context.record import RequestRecord
from openai_frontend.tracing import TraceContext, Tracing, read_trace_context
from openai_frontend.tracing.attributes import ServerAddress
from openai_frontend.tracing.spans import SpanBuilder
from tests.fast.tracing.test_tracing import Kept

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def headers(*parents: str, states: tuple[bytes, ...] = ()) -> list[tuple[bytes, bytes]]:
    given = [(b"traceparent", each.encode("latin-1")) for each in parents]
    return [(b"host", b"x"), *given, *((b"tracestate", each) for each in states)]


def test_trace_context_is_parsed():
    """It has the caller's ids, its sampling decision and tracestate."""
    assert read_trace_context(headers(GOOD, states=(b"a=1", b"b=2"))) == TraceContext(
        TRACE, SPAN, True, "a=1,b=2"
    )


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("03", True)])
def test_lowest_flag_bit_is_sampled(flags, sampled):
    """Other bits are ignored."""
    assert read_trace_context(headers(f"00-{TRACE}-{SPAN}-{flags}")).sampled is sampled


def test_later_version_may_append_fields():
    """Fields after the known ones are ignored."""
    assert read_trace_context(headers(f"01-{TRACE}-{SPAN}-01-more")).trace_id == TRACE


@pytest.mark.parametrize(
    "parents",
    [
        (),
        (GOOD, GOOD),
        ("",),
        (GOOD.upper(),),
        (f"ff-{TRACE}-{SPAN}-01",),
        (f"00-{TRACE}-{SPAN}-01-more",),
        (f"00-{'0' * 32}-{SPAN}-01",),
        (f"00-{TRACE}-{'0' * 16}-01",),
        (f"00-{TRACE[:-1]}-{SPAN}-01",),
        (f"00-{TRACE}-{SPAN}",),
        (f"00-{TRACE}-{SPAN}-zz",),
        (f"{GOOD}\r\nx: y",),
        ("00-\xe9" + GOOD[4:],),
        ("9" * 100_000,),
    ],
)
def test_malformed_traceparent_is_ignored(parents):
    """So is a repeated header."""
    assert read_trace_context(headers(*parents)) is None


VALUE, LONGEST = b"v" * 256, b"k" * 256
MALFORMED = [
    b"secret",
    b"secret=",
    b"=secret",
    b"a=1,secret",
    b"a=1;b=secret=2",
    b"Secret=1",
    b"1secret=1",
    b"a=1\r\nx: secret",
    b"a=secret\x1b[2K",
    b"secret@=1",
    b"a@b@secret=1",
    b"a@" + b"s" * 15 + b"=1",
    b"a=" + VALUE + b"v",
    LONGEST + b"k=1",
    b"a=1,a=secret",
    b",".join(b"k%d=secret" % number for number in range(33)),
    b"a=1," * 2047 + b"secret",
]


@pytest.mark.parametrize("state", [b"x" * 10_000, "a=\xe9".encode(), *MALFORMED])
def test_invalid_tracestate_is_dropped(state):
    """The trace continues without it."""
    assert read_trace_context(headers(GOOD, states=(state,))) == TraceContext(TRACE, SPAN, True, "")


@pytest.mark.parametrize(
    ("state", "members"),
    [
        (b" a=1 ,\tb=2\t", "a=1,b=2"),
        (b",,a=1,", "a=1"),
        (b",", ""),
        (b"a=x y;z:(1)", "a=x y;z:(1)"),
        (b"1t/*_-@v=1", "1t/*_-@v=1"),
        (LONGEST + b"=" + VALUE, (LONGEST + b"=" + VALUE).decode()),
        (*[b",".join(b"k%d=1" % number for number in range(32))] * 2,),
    ],
)
def test_tracestate_is_a_list_of_members(state, members):
    """Spaces around members and empty ones are removed."""
    expected = members.decode() if isinstance(members, bytes) else members

    assert read_trace_context(headers(GOOD, states=(state,))).state == expected


@pytest.mark.parametrize("state", [b"a=1,b=2", *MALFORMED])
def test_span_of_any_tracestate_logs_nothing(state, caplog):
    """OpenTelemetry logs a malformed member, and Triton's backends would get it."""
    record = RequestRecord("req_1", method="GET")
    with caplog.at_level(logging.DEBUG):
        Tracing(Kept()).begin(record, read_trace_context(headers(GOOD, states=(state,))))
        span, *_ = SpanBuilder(Resource({}), ServerAddress("127.0.0.1")).of(record)

    assert caplog.messages == []
    expected = "" if state in MALFORMED else state.decode()
    assert span.context.trace_state.to_header() == expected
    assert json.loads(record.core_context or "").get("tracestate", "") == expected
