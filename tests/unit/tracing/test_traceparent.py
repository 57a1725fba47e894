"""W3C Trace Context headers."""

import pytest

from openai_frontend.tracing import TraceContext, read_trace_context

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


@pytest.mark.parametrize("state", [b"x" * 10_000, "a=\xe9".encode()])
def test_invalid_tracestate_is_dropped(state):
    """The trace continues without it."""
    assert read_trace_context(headers(GOOD, states=(state,))) == TraceContext(TRACE, SPAN, True, "")
