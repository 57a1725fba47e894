"""Exports spans to a collector, in batches on its own thread. Blocks no request.

OpenTelemetry's batch processor accepts finished spans; this one accepts records, so spans are
built off the event loop, and it counts what was dropped.
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
from openai_frontend.errors import caught
from openai_frontend.request_context.record import RequestRecord
from openai_frontend.tracing.attributes import ServerAddress
from openai_frontend.tracing.spans import SpanBuilder

logger = logging.getLogger(__name__)

MAX_RECORDS = 4096  # queued
_BATCH = 512
_SEND_S = 3.0  # per batch, with retries


class Exporter:
    def __init__(self, endpoint: str, address: ServerAddress, *, send_s: float = _SEND_S) -> None:
        """`endpoint` is the collector's base URL. OpenTelemetry's environment variables set its
        headers and certificates, and the delay of a batch.
        """
        self._records: queue.SimpleQueue[RequestRecord | None] = queue.SimpleQueue()
        self._every_s = int(os.environ.get("OTEL_BSP_SCHEDULE_DELAY", "1000")) / 1000
        self._send_s = send_s
        own = {SERVICE_NAME: "openai-frontend", SERVICE_VERSION: __version__}
        resource = Resource(own).merge(OTELResourceDetector().detect())
        self._spans = SpanBuilder(resource, address)
        url = f"{endpoint.rstrip('/')}/v1/traces"
        self._sender: SpanExporter = OTLPSpanExporter(endpoint=url, timeout=send_s)
        self.lost = 0  # requests whose spans were not exported
        self._reported = 0  # of them
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, record: RequestRecord) -> None:
        """Never blocks; drops and counts records that do not fit into the queue."""
        if self._records.qsize() >= MAX_RECORDS:
            self.lost += 1
        else:
            self._records.put(record)

    def close(self) -> None:
        """Exports queued records if the collector accepts them in time. Blocks."""
        self._records.put(None)
        self._thread.join(2 * self._send_s)  # the current batch and the last one
        self._sender.shutdown()

    def _run(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._next_batch()
            if batch:
                self._send(batch)

    def _next_batch(self) -> tuple[list[RequestRecord], bool]:
        """The records of one batch delay; False if it is the last batch."""
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
        sent = False
        with caught(_log_failure):
            for record in batch:
                spans += self._spans.of(record)
            sent = self._sender.export(spans) is SpanExportResult.SUCCESS
        if not sent:
            self.lost += len(batch)
        if self.lost > self._reported:
            logger.warning("dropped the spans of %d requests", self.lost - self._reported)
            self._reported = self.lost


def _log_failure(error: Exception) -> None:
    logger.error("exporting spans failed", exc_info=error)
