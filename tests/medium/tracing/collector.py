"""A collector of OpenTelemetry's: takes OTLP over HTTP, decodes it, keeps the spans."""

import gzip
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Listens on a free port of 127.0.0.1; use it with `with`."""

    def __init__(self, *, status: int = 200, delay_s: float = 0) -> None:
        """`status` is what each request is answered with, after a while."""
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []  # decompressed
        self._came = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, status, delay_s))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._came:
            self.bodies.append(body)
            for of_resource in request.resource_spans:
                self.resources.append(attributes(of_resource.resource))
                for of_scope in of_resource.scope_spans:
                    self.spans += of_scope.spans
            self._came.notify_all()

    def wait_for(self, wanted: Callable[[Span], bool], timeout_s: float = 30) -> Span:
        """Return the first span that is wanted."""
        deadline = time.monotonic() + timeout_s
        with self._came:
            while True:
                for span in self.spans:
                    if wanted(span):
                        return span
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._came.wait(left_s):
                    raise AssertionError(f"no such span among {[span.name for span in self.spans]}")

    def of_request(self, request_id: str) -> Span:
        """Return the span of the request with this id."""
        return self.wait_for(
            lambda span: attributes(span).get("openai_frontend.request_id") == request_id
        )

    def children(self, parent: Span) -> list[Span]:
        return [span for span in self.spans if span.parent_span_id == parent.span_id]


def attributes(of: Any) -> dict[str, Any]:
    """What a span, an event or a resource has."""
    return {each.key: _value(each.value) for each in of.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)


def _handler(collector: Collector, status: int, delay_s: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            time.sleep(delay_s)
            if status == 200 and self.path == "/v1/traces":
                collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status if self.path == "/v1/traces" else 404)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """It has no log."""

    return Handler
