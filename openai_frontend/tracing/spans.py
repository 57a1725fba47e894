"""Builds spans of a request record: one for the request, and one per model in Triton."""

from collections.abc import Iterator, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from openai_frontend import __version__
from openai_frontend.request_context.record import CoreActivity, RequestRecord
from openai_frontend.tracing import attributes
from openai_frontend.tracing.attributes import ServerAddress
from openai_frontend.tracing.core_activities import (
    COMPUTE_END,
    COMPUTE_START,
    QUEUE_START,
    activity_name,
    by_trace,
)

_SCOPE = InstrumentationScope("openai_frontend", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)
_MAX_EVENTS = 64
_MAX_STAGES = 64  # of a request's media
_FIRST_STAGE = 1 << 48  # far from the numbers of Triton's traces


class SpanBuilder:
    """Only used on the exporter's thread."""

    def __init__(self, resource: Resource, address: ServerAddress) -> None:
        self._resource = resource
        self._address = address

    def of(self, record: RequestRecord) -> list[ReadableSpan]:
        """The request's span, then Triton's."""
        assert record.trace_id is not None and record.span_id is not None  # noqa: S101, PT018  it is sampled
        trace_id = int(record.trace_id, 16)
        state = TraceState.from_header([record.trace_state]) if record.trace_state else None
        own = _context(trace_id, int(record.span_id, 16), state)
        caller = record.parent_id
        parent = None if caller is None else _context(trace_id, int(caller, 16), state, remote=True)
        failed = record.status >= 500 or (record.error is not None and record.status < 400)
        span = ReadableSpan(
            attributes.name(record),
            context=own,
            parent=parent,
            resource=self._resource,
            attributes=attributes.of(record, self._address),
            events=list(_events(record)),
            kind=SpanKind.SERVER,
            status=_ERROR if failed else _UNSET,
            start_time=record.begun_ns,
            end_time=record.end_ns,
            instrumentation_scope=_SCOPE,
        )
        return [span, *self._of_media(record, own), *self._of_core(record, own)]

    def _of_media(self, record: RequestRecord, request: SpanContext) -> Iterator[ReadableSpan]:
        """The stages of images and audio, such as `image decode`."""
        for number, stage in enumerate(record.media_stages[:_MAX_STAGES]):
            yield ReadableSpan(
                stage.name,
                context=_context(
                    request.trace_id, _span_id(request, _FIRST_STAGE + number), request.trace_state
                ),
                parent=request,
                resource=self._resource,
                attributes={"gen_ai.request.model": record.model},
                kind=SpanKind.INTERNAL,
                status=_UNSET,
                start_time=stage.begin_ns + record.clock_ns,
                end_time=stage.end_ns + record.clock_ns,
                instrumentation_scope=_SCOPE,
            )

    def _of_core(self, record: RequestRecord, request: SpanContext) -> Iterator[ReadableSpan]:
        """The steps of an ensemble are children of its span."""
        for trace in record.core_traces:
            traces = by_trace(trace)
            contexts = {
                id: _context(request.trace_id, _span_id(request, id), request.trace_state)
                for id in traces
            }
            for id, activities in traces.items():
                parent = contexts.get(activities[0][1], request)
                yield self._of_model(activities, contexts[id], parent, record.clock_ns)

    def _of_model(
        self,
        activities: Sequence[CoreActivity],
        context: SpanContext,
        parent: SpanContext,
        clock_ns: int,
    ) -> ReadableSpan:
        id, _, model, version, *_ = activities[0]
        at = {activity: ns + clock_ns for *_, activity, ns in activities}
        known: dict[str, attributes.Attribute] = {
            "triton.model_name": model,
            "triton.model_version": version,
            "triton.trace_id": id,
        }
        if QUEUE_START in at and COMPUTE_START in at:
            known["triton.queue_ns"] = at[COMPUTE_START] - at[QUEUE_START]
        if COMPUTE_START in at and COMPUTE_END in at:
            known["triton.compute_ns"] = at[COMPUTE_END] - at[COMPUTE_START]
        return ReadableSpan(
            f"triton {model}",
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=known,
            events=[_event(activity_name(each), ns) for each, ns in at.items()],
            kind=SpanKind.INTERNAL,
            status=_UNSET,
            start_time=min(at.values()),
            end_time=max(at.values()),
            instrumentation_scope=_SCOPE,
        )


def _events(record: RequestRecord) -> Iterator[Event]:
    """The first token and the end of each generation."""
    for choice, each in enumerate(record.generations[: _MAX_EVENTS // 2]):
        known = {"openai_frontend.choice": choice}
        if each.first_ns is not None:
            yield _event("openai_frontend.first_token", each.first_ns, known)
        if each.end_ns is not None:
            ended = {**known, "gen_ai.usage.output_tokens": each.usage.completion_tokens}
            yield _event("openai_frontend.end", each.end_ns, ended)


def _event(name: str, ns: int, known: dict[str, int] | None = None) -> Event:
    return Event(name, known, ns)


def _context(
    trace_id: int, span_id: int, state: TraceState | None, *, remote: bool = False
) -> SpanContext:
    return SpanContext(trace_id, span_id, remote, _SAMPLED, state)


def _span_id(request: SpanContext, number: int) -> int:
    """Unique within the trace: Triton numbers its traces from 1."""
    return (request.span_id + number) % 2**64 or 1
