"""Decides which requests are traced, and hands what is known of them over when they are over."""

import json
import random
from typing import Protocol

from openai_frontend.request_record import RequestRecord
from openai_frontend.tracing.traceparent import TraceContext

_HALF = 2**64  # of a trace id, whose lower half decides: as OpenTelemetry's own sampler

# Asked every few seconds by machines: no traces of their own
_PROBES = frozenset(
    {
        "/health", "/health/live", "/health/ready", "/healthz", "/metrics", "/ping",
        "/v2/health/live", "/v2/health/ready",
    }
)  # fmt: skip


class RecordExporter(Protocol):
    """Where records become spans."""

    @property
    def lost(self) -> int:
        """Requests whose spans nobody has taken."""

    def put(self, record: RequestRecord) -> None:
        """Never blocks."""

    def close(self) -> None:
        """Blocks until what waits has been sent, or cannot be."""


class Tracing:
    """`begin` gives a request its ids; `end` takes its record where it is sampled."""

    def __init__(self, spans: RecordExporter) -> None:
        self._spans = spans
        self.set_sampling(ratio=1.0, follows_caller=True)

    @property
    def lost(self) -> int:
        """Sampled requests whose spans nobody has taken."""
        return self._spans.lost

    def set_sampling(self, *, ratio: float, follows_caller: bool) -> None:
        """From the next request on. `ratio` is the share of the requests that are sampled where no
        caller decides it.
        """
        self._bound = round(ratio * _HALF)
        self._follows_caller = follows_caller

    def begin(self, record: RequestRecord, caller: TraceContext | None) -> None:
        """The request's own span, and what Triton is told of it."""
        # Unique, not secret, as request ids are
        trace_id = caller.trace_id if caller is not None else f"{random.getrandbits(128):032x}"
        record.trace_id, record.span_id = trace_id, f"{random.getrandbits(64):016x}"
        if caller is not None:
            record.parent_id, record.trace_state = caller.span_id, caller.state
        if self._samples(trace_id, caller):
            record.core_context = _core_context(record)

    def end(self, record: RequestRecord) -> None:
        """The request is over."""
        if record.parent_id is None and record.route in _PROBES:
            return
        if record.core_context is not None:
            self._spans.put(record)

    def close(self) -> None:
        """There are no more requests. Blocks, for some seconds at most."""
        self._spans.close()

    def _samples(self, trace_id: str, caller: TraceContext | None) -> bool:
        if caller is not None and self._follows_caller:
            return caller.sampled
        return int(trace_id[16:], 16) < self._bound


def _core_context(record: RequestRecord) -> str:
    """As Triton's own frontends write it: backends find W3C's headers in it by their names."""
    context = {"traceparent": f"00-{record.trace_id}-{record.span_id}-01"}
    if record.trace_state:
        context["tracestate"] = record.trace_state
    return json.dumps(context)
