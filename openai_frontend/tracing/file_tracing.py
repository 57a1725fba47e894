"""tritonserver's trace mode `triton`: samples requests and writes their traces to files."""

from collections.abc import Callable
from functools import partial
from time import monotonic_ns

from openai_frontend.config.trace_options import FileTraces
from openai_frontend.request_context.record import CoreTrace, RequestRecord
from openai_frontend.tracing import TraceContext
from openai_frontend.tracing.trace_settings import Changes, TraceSetting, TraceSettingsByModel
from openai_frontend.tracing.trace_writer import FinishedTrace, TraceWriter

# tritonserver's names for the begin and end of receiving and of sending
_HTTP = ("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END")
_GRPC = ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END")


class FileTracing:
    """Used on the event loop's thread only."""

    def __init__(self, start: FileTraces) -> None:
        """Raises OSError if the file cannot be written."""
        self.file = "" if start.file is None else str(start.file)
        self._settings = TraceSettingsByModel(start)
        self._writer = None if start.file is None else TraceWriter(start.file)

    @property
    def lost(self) -> int:
        """Traces that were not written."""
        return 0 if self._writer is None else self._writer.lost

    def setting(self, model: str | None) -> TraceSetting:
        """The setting of a model, or of all models (None)."""
        return self._settings.all if model is None else self._settings.of(model)

    def update(self, model: str | None, changes: Changes) -> None:
        """Raises ValueError with the reason; nothing changes then."""
        self._settings.update(model, changes)

    def begin(self, record: RequestRecord, caller: TraceContext | None) -> None:
        if caller is not None:
            record.trace_id = caller.trace_id
        if self._settings.enabled:
            record.sampler = self

    def end(self, record: RequestRecord) -> None:
        """Traces end with the core's requests, of which a call may have many."""

    def sample(
        self, record: RequestRecord, model: str
    ) -> tuple[int, Callable[[CoreTrace], None]] | None:
        """Count an inference request."""
        setting = self._settings.of(model)
        if self._writer is None or not setting.sample():
            return None
        finish = partial(self._finish, self._writer, setting, record, monotonic_ns())
        return setting.level, finish

    def _finish(
        self,
        writer: TraceWriter,
        setting: TraceSetting,
        record: RequestRecord,
        received_ns: int,
        trace: CoreTrace,
    ) -> None:
        now_ns = monotonic_ns()
        names = _GRPC if record.method == "RPC" else _HTTP
        times = record.begun_ns - record.clock_ns, received_ns, record.sent_ns or now_ns, now_ns
        writer.put(FinishedTrace(setting, trace, tuple(zip(names, times, strict=True))))

    def close(self) -> None:
        """Called after the last request. Blocks until the files are complete."""
        if self._writer is not None:
            self._writer.close()
