"""Reads W3C Trace Context headers. Malformed headers are ignored."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# version-trace-parent-flags; later versions may append fields
_TRACEPARENT = re.compile(
    rb"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    rb"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_SAMPLED = 0x01
_MAX_STATE_BYTES = 8192  # W3C requires at least 512; 32 members cannot be longer


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The caller's span, the parent of the request."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16
    sampled: bool
    state: str  # tracestate of other vendors, unparsed


def read(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """None if `traceparent` is missing, repeated or malformed."""
    traceparent: bytes | None = None
    states: list[bytes] = []
    for name, value in headers:
        if name == b"traceparent":
            if traceparent is not None:
                return None
            traceparent = value
        elif name == b"tracestate":
            states.append(value)
    return None if traceparent is None else _read(traceparent.strip(b" \t"), b",".join(states))


def _read(parent: bytes, state: bytes) -> TraceContext | None:
    match = _TRACEPARENT.fullmatch(parent)
    if match is None or (match["version"] == b"00" and match["more"] is not None):
        return None
    trace_id, span_id = match["trace"].decode(), match["span"].decode()
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    readable = len(state) <= _MAX_STATE_BYTES and state.isascii()
    return TraceContext(
        trace_id,
        span_id,
        sampled=bool(int(match["flags"], 16) & _SAMPLED),
        state=state.decode() if readable else "",
    )
