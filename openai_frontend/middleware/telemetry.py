"""Observes each request: metrics, and records for the access log, traces and JSON log lines."""

import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from functools import partial
from time import monotonic_ns, perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.request_context.context import RequestContext, current_request
from openai_frontend.request_context.record import RequestRecord
from openai_frontend.tracing import RequestTracing, read_trace_context

_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
NO_ROUTE = "none"  # label for requests that no route matches; the access log has it too


_LOAD_FORMAT, _LOAD = b"endpoint-load-metrics-format", b"endpoint-load-metrics"

# Returns the value of the header `endpoint-load-metrics` in this format; None: leave it out.
LoadReport = Callable[[Scope, str], str | None]


class RequestMetrics:
    """Counts requests by route, model and status, and rejections by reason. Adds ORCA's header
    `endpoint-load-metrics` to responses whose requests ask for it.

    Wraps everything that answers, so that it also counts error responses.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: GatewayMetrics,
        fixed: Container[tuple[str, str]],
        load_report: LoadReport | None = None,
    ) -> None:
        """`fixed`: method and path of routes without parameters, which bypass the router."""
        self._app = app
        self._metrics = metrics
        self._fixed = fixed
        self._load_report = load_report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics = self._metrics
        response = _StatusRecorder(send, metrics)
        is_post = scope["method"] == "POST"
        if is_post:
            metrics.at_work.inc()
            if self._load_report is not None:
                response.report_load(scope, self._load_report)
        started_s = perf_counter()
        try:
            await self._app(scope, receive, response.send)
        finally:
            if is_post:
                metrics.at_work.dec()
            if response.streams:
                metrics.streams.dec()
            seconds = perf_counter() - started_s
            self._count(scope, response.status, seconds)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        context = current_request()
        route, model = self._route(scope), context.model_name
        context.route = "" if route == NO_ROUTE else route
        self._metrics.answered(route, model, status, seconds)
        if context.rejection is not None:
            self._metrics.rejected(model, context.rejection)

    def _route(self, scope: Scope) -> str:
        """The route's path template: text from a client must not become a label."""
        if (scope["method"], scope["path"]) in self._fixed:
            return str(scope["path"])
        return getattr(scope.get("route"), "path", NO_ROUTE)


class _StatusRecorder:
    """The status is 499 if the client disconnects before the response starts."""

    def __init__(self, send: Send, metrics: GatewayMetrics) -> None:
        self._send = send
        self._metrics = metrics
        self.status = 499
        self.streams = False
        self._load: Callable[[], str | None] | None = None

    def report_load(self, scope: Scope, report: LoadReport) -> None:
        """Add the load at the start of the response, if the request asks for it."""
        for name, value in scope["headers"]:
            if name == _LOAD_FORMAT:
                self._load = partial(report, scope, value.decode("latin-1"))

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            if self._load is not None and (load := self._load()) is not None:
                message["headers"] = [*message["headers"], (_LOAD, load.encode())]
            self.status = message["status"]
            self.streams = _EVENTS in message["headers"]
            if self.streams:
                self._metrics.streams.inc()
        return self._send(message)


access_logger = logging.getLogger("openai_frontend.access_log")

# OpenTelemetry's convention: other methods are `_OTHER`, so that clients cannot choose span names
_METHODS = {
    name: name
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
}


class RequestRecords:
    """Begins and ends the records of requests, for the access log, traces and JSON log lines."""

    def __init__(
        self,
        tracing: RequestTracing | None,
        observers: Sequence[Callable[[RequestRecord], None]] = (),
    ) -> None:
        """`observers` are called with each finished record, and must not block."""
        self._tracing = tracing
        self._observers = observers

    def begin(
        self,
        context: RequestContext,
        method: str,
        client: str | None,
        headers: Iterable[tuple[bytes, bytes]],
    ) -> RequestRecord:
        """`client` is an address; `headers` may have the caller's trace."""
        record = context.record = RequestRecord(context.request_id, method=method, client=client)
        parent = read_trace_context(headers)
        if self._tracing is not None:
            self._tracing.begin(record, parent)
        elif parent is not None:
            record.trace_id = parent.trace_id
        return record

    def end(self, record: RequestRecord, context: RequestContext) -> None:
        """The response has ended; `record.status` is set."""
        record.body_bytes += context.streamed_bytes  # which bypassed the middleware
        record.end_ns = record.now_ns()
        record.route, record.model = context.route, context.model
        principal = context.principal
        record.key = None if principal is None else principal.key.name
        for observe in self._observers:
            observe(record)
        if self._tracing is not None:
            self._tracing.end(record)


class Telemetry:
    """Records each request.

    Wraps everything that sends a part of a response, inside of `RequestId`. The application leaves
    it out if nothing uses records.
    """

    def __init__(self, app: ASGIApp, *, records: RequestRecords) -> None:
        self._app = app
        self._records = records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = current_request()
        client = scope.get("client")
        record = self._records.begin(
            context,
            _METHODS.get(scope["method"], "_OTHER"),
            None if client is None else client[0],
            scope["headers"],
        )
        try:
            await self._app(scope, receive, _RecordedResponse(record, send).send)
        finally:
            self._records.end(record, context)


class _RecordedResponse:
    """Records the status, and counts the bytes of the body."""

    def __init__(self, record: RequestRecord, send: Send) -> None:
        self._record = record
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._record.status = message["status"]
            self._record.sent_ns = monotonic_ns()
        else:
            self._record.body_bytes += len(message.get("body", b""))
        await self._send(message)


def log_request(record: RequestRecord) -> None:
    """Writes the access log line: never the path or a header as the client sent it.

    The message contains the same fields as the JSON members.
    """
    if not access_logger.isEnabledFor(logging.INFO):
        return
    fields = {
        "method": record.method,
        "route": record.route or NO_ROUTE,
        "status": record.status,
        "duration_ms": round((record.end_ns - record.begun_ns) / 1e6, 3),
        "bytes": record.body_bytes,
        "model": record.model or None,
        "prompt_tokens": record.prompt_tokens or None,
        "completion_tokens": record.completion_tokens or None,
        "key": record.key,
        "client": record.client,
        "error": record.error,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    head = [str(known.pop(name)) for name in ("method", "route", "status")]
    pairs = [f"{name}={value}" for name, value in known.items()]
    access_logger.info("%s", " ".join(head + pairs), extra={"fields": fields})
