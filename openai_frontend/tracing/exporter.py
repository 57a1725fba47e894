"""Sends spans to a collector, in batches and on a thread of its own. Blocks no request.

OpenTelemetry's own batch processor takes finished spans; this one takes records, so that spans too
are made off the event loop, and it knows how many were lost.
"""

import logging
import os
import queue
import threading
import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import (
    SERVICE_NAME,
    SERVICE_VERSION,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from openai_frontend import __version__
from openai_frontend.request_record import RequestRecord
from openai_frontend.tracing.attributes import ServerAddress
from openai_frontend.tracing.spans import SpanBuilder

logger = logging.getLogger(__name__)

MAX_RECORDS = 4096  # that wait
_BATCH = 512
_SEND_S = 3.0  # that one batch may take, with its repetitions


class Exporter:
    """Takes records until it is closed."""

    def __init__(self, endpoint: str, address: ServerAddress, *, send_s: float = _SEND_S) -> None:
        """`endpoint` is a collector's base address; its headers and certificates, and how long a
        batch waits for more, are set by OpenTelemetry's own environment variables.
        """
        self._records: queue.SimpleQueue[RequestRecord | None] = queue.SimpleQueue()
        self._every_s = int(os.environ.get("OTEL_BSP_SCHEDULE_DELAY", "1000")) / 1000
        self._send_s = send_s
        own = {SERVICE_NAME: "openai-frontend", SERVICE_VERSION: __version__}
        resource = Resource(own).merge(OTELResourceDetector().detect())
        self._spans = SpanBuilder(resource, address)
        url = f"{endpoint.rstrip('/')}/v1/traces"
        self._sender: SpanExporter = OTLPSpanExporter(endpoint=url, timeout=send_s)
        self.lost = 0  # requests whose spans reached no collector
        self._told = 0  # of them
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, record: RequestRecord) -> None:
        """Never blocks: what finds no room is counted."""
        if self._records.qsize() >= MAX_RECORDS:
            self.lost += 1
        else:
            self._records.put(record)

    def close(self) -> None:
        """Sends what waits, as far as the collector takes it in time. Blocks."""
        self._records.put(None)
        self._thread.join(2 * self._send_s)  # a batch under way, and the last
        self._sender.shutdown()

    def _run(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._next_batch()
            if batch:
                self._send(batch)

    def _next_batch(self) -> tuple[list[RequestRecord], bool]:
        """What comes within a while; False with the last one."""
        batch: list[RequestRecord] = []
        first = self._records.get()
        if first is None:
            return batch, False
        batch.append(first)
        until_s = time.monotonic() + self._every_s
        while len(batch) < _BATCH:
            try:
                record = self._records.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                break
            if record is None:
                return batch, False
            batch.append(record)
        return batch, True

    def _send(self, batch: list[RequestRecord]) -> None:
        spans: list[ReadableSpan] = []
        try:
            for record in batch:
                spans += self._spans.of(record)
            sent = self._sender.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # the thread's edge: it goes on with the next batch
            logger.exception("spans could not be sent")
            sent = False
        if not sent:
            self.lost += len(batch)
        if self.lost > self._told:
            logger.warning("the spans of %d requests were lost", self.lost - self._told)
            self._told = self.lost
