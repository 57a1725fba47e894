"""Joins requests to the traces of their callers, samples them, and exports their records.

Malformed W3C Trace Context headers are ignored. Only `exporter` and `spans` import OpenTelemetry.
"""

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from openai_frontend.media.stages import LOG
from openai_frontend.request_context.record import RequestRecord

# version-trace-parent-flags; later versions may append fields
_TRACEPARENT = re.compile(
    rb"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    rb"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_SAMPLED = 0x01
_MAX_STATE_BYTES = 8192  # W3C requires at least 512
_MAX_STATE_MEMBERS = 32
# key=value or tenant@system=value. OpenTelemetry logs a member that does not match, and its value.
_STATE_MEMBER = re.compile(
    rb"(?P<key>[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    rb"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The caller's span, the parent of the request."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16
    sampled: bool
    state: str  # tracestate of other vendors; empty if it is malformed


def read_trace_context(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
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
    return None if traceparent is None else _parse(traceparent.strip(b" \t"), b",".join(states))


def _parse(parent: bytes, state: bytes) -> TraceContext | None:
    match = _TRACEPARENT.fullmatch(parent)
    if match is None or (match["version"] == b"00" and match["more"] is not None):
        return None
    trace_id, span_id = match["trace"].decode(), match["span"].decode()
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(
        trace_id,
        span_id,
        sampled=bool(int(match["flags"], 16) & _SAMPLED),
        state=_well_formed(state),
    )


def _well_formed(state: bytes) -> str:
    """The members of `tracestate`, or nothing if one is malformed or its key is repeated."""
    if not state or len(state) > _MAX_STATE_BYTES:
        return ""
    members = [member for each in state.split(b",") if (member := each.strip(b" \t"))]
    if len(members) > _MAX_STATE_MEMBERS:
        return ""
    keys = {match["key"] for each in members if (match := _STATE_MEMBER.fullmatch(each))}
    return b",".join(members).decode() if len(keys) == len(members) else ""


_HALF = 2**64  # sampling uses the lower half of the trace id, as OpenTelemetry's sampler does

# Polled every few seconds: not traced
_PROBES = frozenset(
    {
        "/health", "/health/live", "/health/ready", "/healthz", "/metrics", "/ping",
        "/v2/health/live", "/v2/health/ready",
    }
)  # fmt: skip


class RecordExporter(Protocol):
    @property
    def lost(self) -> int:
        """Requests whose spans were not exported."""

    def put(self, record: RequestRecord) -> None:
        """Never blocks."""

    def close(self) -> None:
        """Blocks until queued records are exported or dropped."""


class RequestTracing(Protocol):
    """Follows requests from their heads to their ends."""

    @property
    def lost(self) -> int:
        """Traced requests of which nothing was exported."""

    def begin(self, record: RequestRecord, caller: TraceContext | None) -> None: ...

    def end(self, record: RequestRecord) -> None: ...

    def close(self) -> None:
        """Called after the last request. Blocks."""


class Tracing:
    """`begin` assigns trace ids to a request; `end` exports its record if it is sampled."""

    def __init__(
        self, exporter: RecordExporter, *, ratio: float = 1.0, follows_caller: bool = True
    ) -> None:
        """`ratio`: the share of requests sampled if the caller's trace does not decide.

        `ratio` and `enabled` may change at any time, for later requests.
        """
        self._exporter = exporter
        LOG.enabled = True
        self.ratio = ratio
        self.enabled = True
        self._follows_caller = follows_caller

    @property
    def lost(self) -> int:
        """Sampled requests whose spans were not exported."""
        return self._exporter.lost

    def begin(self, record: RequestRecord, caller: TraceContext | None) -> None:
        """Sets the ids of the request's span, and the trace context for Triton."""
        # Unique, not secret, as request ids are
        trace_id = caller.trace_id if caller is not None else f"{random.getrandbits(128):032x}"
        record.trace_id, record.span_id = trace_id, f"{random.getrandbits(64):016x}"
        if caller is not None:
            record.parent_id, record.trace_state = caller.span_id, caller.state
        if self._samples(trace_id, caller):
            record.core_context = _core_context(record)

    def end(self, record: RequestRecord) -> None:
        if record.parent_id is None and record.route in _PROBES:
            return
        for each in record.generations:
            record.media_stages += LOG.take(each.request_id)
        if record.core_context is not None:
            self._exporter.put(record)

    def close(self) -> None:
        """Called after the last request. Blocks for some seconds at most."""
        LOG.enabled = False
        self._exporter.close()

    def _samples(self, trace_id: str, caller: TraceContext | None) -> bool:
        if not self.enabled:
            return False
        if caller is not None and self._follows_caller:
            return caller.sampled
        return int(trace_id[16:], 16) < self.ratio * _HALF


def _core_context(record: RequestRecord) -> str:
    """The format of Triton's frontends: W3C headers by name, which backends read."""
    context = {"traceparent": f"00-{record.trace_id}-{record.span_id}-01"}
    if record.trace_state:
        context["tracestate"] = record.trace_state
    return json.dumps(context)
