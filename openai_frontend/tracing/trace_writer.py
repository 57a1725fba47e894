"""Writes finished traces to files, on a thread of its own, in the format of tritonserver."""

import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from openai_frontend.config.trace_options import TENSORS
from openai_frontend.errors import caught, describe_exception
from openai_frontend.request_context.record import CoreTrace
from openai_frontend.tracing.core_activities import activity_name, by_trace
from openai_frontend.tracing.trace_file import JsonArrayFile
from openai_frontend.tracing.trace_settings import TraceSetting

logger = logging.getLogger(__name__)

# Limits of traces that wait for the disk; one with tensors may take 16 MiB
MAX_TRACES, MAX_TENSOR_TRACES = 65536, 64
_POLL_S = 0.02  # for the ends of traces whose requests have ended
_CLOSE_S = 5.0  # at shutdown, for those whose end the core has not reported

Timestamps = Sequence[tuple[str, int]]  # names and nanoseconds of the monotonic clock


@dataclass(slots=True, eq=False)
class FinishedTrace:
    """A request that has ended."""

    setting: TraceSetting
    trace: CoreTrace
    frontend: Timestamps


class _Group:
    """The traces of one setting."""

    def __init__(self) -> None:
        self.file: JsonArrayFile | None = None  # the numbered file that is not complete
        self.in_file = 0
        self.collected = 0

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


class TraceWriter:
    """Files are complete when `close` returns."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be written."""
        self._path = path
        self._existed = path.exists()
        self._main = JsonArrayFile(path, exclusive=True)
        self._index = 0
        self._groups: dict[TraceSetting, _Group] = {}
        self._finished: queue.SimpleQueue[FinishedTrace | None] = queue.SimpleQueue()
        self._waiting: list[FinishedTrace] = []
        self.lost = 0  # traces that were not written
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="trace-file", daemon=True)
        self._thread.start()

    def put(self, trace: FinishedTrace) -> None:
        """Never blocks; drops and counts traces if the disk does not keep up."""
        has_tensors = trace.setting.level & TENSORS
        if self._finished.qsize() >= (MAX_TENSOR_TRACES if has_tensors else MAX_TRACES):
            self.lost += 1
        else:
            self._finished.put(trace)

    def close(self) -> None:
        """Write everything. Blocks for as long as the disk needs, or 30 s."""
        self._finished.put(None)
        self._thread.join(30.0)

    def _run(self) -> None:
        until_s: float | None = None
        while until_s is None or (self._waiting and time.monotonic() < until_s):
            if not self._receive():
                until_s = time.monotonic() + _CLOSE_S
            ended: list[FinishedTrace] = []
            waiting: list[FinishedTrace] = []
            for each in self._waiting:  # once: the core reports an end at any time
                (ended if each.trace.ended else waiting).append(each)
            self._waiting = waiting
            with caught(self._failed):
                self._write(ended)
        with caught(self._failed):
            self._write(self._waiting)
        self._close_files()

    def _receive(self) -> bool:
        """Take what is queued; wait for it unless traces must be looked at again. False: closed."""
        try:
            found = self._finished.get(timeout=_POLL_S if self._waiting else None)
            while found is not None:
                self._waiting.append(found)
                found = self._finished.get_nowait()
        except queue.Empty:
            return True
        return False

    def _write(self, traces: Sequence[FinishedTrace]) -> None:
        """Traces of one file are written together."""
        members: list[bytes] = []
        for each in traces:
            found = [orjson.dumps(entry) for entry in _entries(each)]
            if each.setting.limited or each.setting.log_frequency:
                self._write_numbered(each.setting, found)
            else:
                members += found
        if members:
            self._append(self._main, members)
        self._close_complete()

    def _write_numbered(self, setting: TraceSetting, members: Sequence[bytes]) -> None:
        group = self._groups.setdefault(setting, _Group())
        group.collected += 1
        if members:
            if group.file is None:
                group.file, group.in_file = self._next_file(), 0
            if group.file is not None:
                self._append(group.file, members)
                group.in_file += 1
        if group.in_file == setting.log_frequency:
            group.close()

    def _close_complete(self) -> None:
        """Close the files of settings that sample no further trace."""
        for setting, group in [*self._groups.items()]:
            if setting.exhausted and group.collected == setting.sampled:
                group.close()
                del self._groups[setting]

    def _next_file(self) -> JsonArrayFile | None:
        path = self._path.with_name(f"{self._path.name}.{self._index}")
        try:
            file = JsonArrayFile(path)
        except OSError as error:
            self._failed(error)
            return None
        self._index += 1
        return file

    def _append(self, file: JsonArrayFile, members: Sequence[bytes]) -> None:
        try:
            file.append(members)
        except OSError as error:
            self._failed(error)
        else:
            if self._failing:
                logger.info("traces are written again: file=%s", self._path)
            self._failing = False

    def _failed(self, error: Exception) -> None:
        """Logged once until a write succeeds."""
        self.lost += 1
        if not self._failing:
            reason = getattr(error, "strerror", None) or describe_exception(error)
            logger.error("traces are lost: file=%s reason=%s", self._path, reason)
        self._failing = True

    def _close_files(self) -> None:
        for group in self._groups.values():
            group.close()
        if self._main.is_empty and not self._existed:
            self._path.unlink(missing_ok=True)
        self._main.close()


def _entries(finished: FinishedTrace) -> Iterator[dict[str, Any]]:
    """The model of each trace, then its times, each an object; then tensors. Empty if the core
    refused the request.
    """
    request_ids = finished.trace.request_ids()
    for id, activities in by_trace(finished.trace).items():
        _, parent, model, version, *_ = activities[0]
        entry: dict[str, Any] = {"id": id, "model_name": model, "model_version": version}
        if request_ids.get(id):
            entry["request_id"] = request_ids[id]
        if parent:
            entry["parent_id"] = parent
        yield entry
        times = [(activity_name(number), ns) for *_, number, ns in activities]
        times += () if parent else finished.frontend
        for name, ns in sorted(times, key=lambda time: time[1]):
            yield {"id": id, "timestamps": [{"name": name, "ns": ns}]}
    for id, number, name, datatype, shape, elements in finished.trace.tensors():
        tensor = {
            "name": name,
            "data": ",".join(_texts(datatype, elements)),
            "shape": ",".join(map(str, shape)),
            "dtype": datatype,
        }
        yield {"id": id, "activity": activity_name(number), "tensor": tensor}


def _texts(datatype: str, elements: Sequence[Any]) -> Iterable[str]:
    """CSV, which NVIDIA's summary reads. BF16 has no numbers there."""
    if datatype == "BYTES":
        texts = (each.decode("utf-8", "replace").replace('"', '""') for each in elements)
        return (f'"{text}"' for text in texts)
    if datatype == "BOOL":
        return (str(int(each)) for each in elements)
    if datatype in ("FP16", "FP32"):
        return (f"{each:.9g}" for each in elements)
    return () if datatype == "BF16" else map(str, elements)
