"""The caller's trace, as W3C's Trace Context writes it into headers. What is malformed is none."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# version-trace-parent-flags; a later version may have more after them
_TRACEPARENT = re.compile(
    rb"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    rb"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_SAMPLED = 0x01
_MAX_STATE_BYTES = 8192  # W3C wants 512 at least; a list of 32 members cannot be longer


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The span that the request belongs to."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16
    sampled: bool
    state: str  # other vendors' own, as it came and unread


def read(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """None where there is no header `traceparent`, several, or one that is malformed."""
    given: bytes | None = None
    states: list[bytes] = []
    for name, value in headers:
        if name == b"traceparent":
            if given is not None:
                return None
            given = value
        elif name == b"tracestate":
            states.append(value)
    return None if given is None else _read(given.strip(b" \t"), b",".join(states))


def _read(parent: bytes, state: bytes) -> TraceContext | None:
    found = _TRACEPARENT.fullmatch(parent)
    if found is None or (found["version"] == b"00" and found["more"] is not None):
        return None
    trace_id, span_id = found["trace"].decode(), found["span"].decode()
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    readable = len(state) <= _MAX_STATE_BYTES and state.isascii()
    return TraceContext(
        trace_id,
        span_id,
        sampled=bool(int(found["flags"], 16) & _SAMPLED),
        state=state.decode() if readable else "",
    )
