"""Files of traces: their format, numbered files, a full disk, and who may write them."""

import csv
import errno
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.tracing import trace_writer
from openai_frontend.tracing.trace_file import JsonArrayFile, unusable
from openai_frontend.tracing.trace_settings import TraceSetting
from openai_frontend.tracing.trace_writer import FinishedTrace, TraceWriter

FRONTEND = (("HTTP_RECV_START", 1), ("HTTP_RECV_END", 2), ("HTTP_SEND_END", 30))


class Reported:
    """A trace with an ensemble and one step; its core may not have reported its end."""

    def __init__(self, id: int, *, ended: bool = True) -> None:
        self.ended = ended
        self._id = id

    def activities(self) -> list[tuple[int, int, str, int, int, int]]:
        id = self._id
        return [
            (id, 0, "whole", 1, 0, 10), (id + 1, id, "step", 2, 0, 12),
            (id + 1, id, "step", 2, 1, 11), (id + 1, id, "step", 2, 6, 13),
            (id, 0, "whole", 1, 6, 20),
        ]  # fmt: skip

    def request_ids(self) -> dict[int, str]:
        return {self._id: 'a"b'}

    def tensors(self) -> list[tuple[int, int, str, str, tuple[int, ...], list[Any]]]:
        return []


class WithTensors(Reported):
    """At the level TENSORS alone, without times."""

    def activities(self) -> list[tuple[int, int, str, int, int, int]]:
        return []

    def tensors(self) -> list[tuple[int, int, str, str, tuple[int, ...], list[Any]]]:
        return [
            (1, 7, "a", "FP32", (1, 2), [0.10000000149011612, 2.0]),
            (1, 8, "b", "BYTES", (2,), [b'say "x, y"', b"\xff"]),
            (1, 9, "c", "BOOL", (2,), [True, False]),
            (1, 9, "d", "INT8", (0,), []),
            (1, 9, "e", "BF16", (1,), [16256]),
        ]


class Refused(Reported):
    def activities(self) -> list[tuple[int, int, str, int, int, int]]:
        return []


def setting(count: int = -1, frequency: int = 0) -> TraceSetting:
    return TraceSetting(level=4, rate=1, count=count, log_frequency=frequency)


def write(writer: TraceWriter, chosen: TraceSetting, *traces: Reported) -> None:
    for trace in traces:
        assert chosen.sample()
        writer.put(FinishedTrace(chosen, trace, FRONTEND))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces"


@pytest.fixture
def writer(path: Path) -> Iterator[TraceWriter]:
    made = TraceWriter(path)
    yield made
    if made._thread.is_alive():
        made.close()


def ids(path: Path) -> list[int]:
    return [each["id"] for each in json.loads(path.read_bytes()) if "model_name" in each]


def test_fewer_traces_with_tensors_wait(
    writer: TraceWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take 16 MiB while the disk is slow."""
    monkeypatch.setattr(trace_writer, "MAX_TENSOR_TRACES", 0)
    with_tensors = TraceSetting(level=12, rate=1, count=-1, log_frequency=0)

    write(writer, with_tensors, Reported(1))
    write(writer, setting(), Reported(3))
    writer.close()

    assert writer.lost == 1
    assert ids(path) == [3, 4]


def test_format(writer: TraceWriter, path: Path) -> None:
    """Times ascend; those of the frontend belong to the request's own trace."""
    write(writer, setting(), Reported(5))
    writer.close()
    found: list[dict[str, Any]] = json.loads(path.read_bytes())

    models = [each for each in found if "model_name" in each]
    assert models == [
        {"id": 5, "model_name": "whole", "model_version": 1, "request_id": 'a"b'},
        {"id": 6, "model_name": "step", "model_version": 2, "parent_id": 5},
    ]
    times: dict[int, list[tuple[str, int]]] = {5: [], 6: []}
    for each in found:
        for stamp in each.get("timestamps", ()):
            times[each["id"]].append((stamp["name"], stamp["ns"]))
    assert [name for name, _ in times[5]] == [
        "HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "REQUEST_END", "HTTP_SEND_END",
    ]  # fmt: skip
    assert times[6] == [("QUEUE_START", 11), ("REQUEST_START", 12), ("REQUEST_END", 13)]


def test_tensors(writer: TraceWriter, path: Path) -> None:
    """Their elements are CSV; BF16 has none."""
    write(writer, setting(), WithTensors(1))
    writer.close()
    found = json.loads(path.read_bytes())

    assert found[0] == {
        "id": 1,
        "activity": "TENSOR_QUEUE_INPUT",
        "tensor": {"name": "a", "data": "0.100000001,2", "shape": "1,2", "dtype": "FP32"},
    }
    assert [each["activity"][7:] for each in found[1:3]] == ["BACKEND_INPUT", "BACKEND_OUTPUT"]
    assert [each["tensor"]["data"] for each in found[2:]] == ["1,0", "", ""]
    assert next(csv.reader([found[1]["tensor"]["data"]])) == ['say "x, y"', "\ufffd"]


def test_log_frequency_numbers_files(writer: TraceWriter, path: Path) -> None:
    """At the shutdown, the rest is in the last one."""
    write(writer, setting(frequency=2), *map(Reported, (1, 3, 5, 7, 9)))
    writer.close()

    assert [ids(path.with_name(f"traces.{n}"))[::2] for n in range(3)] == [[1, 3], [5, 7], [9]]
    assert not path.exists()


def test_counted_traces_are_in_a_numbered_file(writer: TraceWriter, path: Path) -> None:
    """A request that the core refused counts, too; later settings begin a new file."""
    write(writer, setting(count=3), Reported(1), Refused(3), Reported(5))
    write(writer, setting(count=1), Reported(7))
    writer.close()

    assert ids(path.with_name("traces.0"))[::2] == [1, 5]
    assert ids(path.with_name("traces.1"))[::2] == [7]


def test_replaced_settings_leave_no_file_open(writer: TraceWriter, path: Path) -> None:
    """Each change of the settings may have begun a file."""
    before = len(os.listdir("/proc/self/fd"))
    for number in range(10):
        replaced = setting(frequency=5)
        write(writer, replaced, Reported(number))
        replaced.replaced = True
    write(writer, setting(), Reported(99))
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before and not writer._groups)
    writer.close()

    assert [ids(path.with_name(f"traces.{n}"))[0] for n in range(10)] == [*range(10)]


def test_trace_waits_for_its_end(writer: TraceWriter, path: Path) -> None:
    late = Reported(1, ended=False)
    write(writer, setting(), late, Reported(3))
    wait_until(lambda: _size(path) > 0)
    assert ids(path)[::2] == [3]
    late.ended = True
    writer.close()

    assert ids(path)[::2] == [3, 1]


class EndsSoon(Reported):
    """Its end is reported after the first look at it."""

    def __init__(self, id: int) -> None:
        self._id = id
        self._looks = 0

    @property
    def ended(self) -> bool:  # type: ignore[override]
        self._looks += 1
        return self._looks > 1


def test_trace_that_ends_between_two_looks_is_written(writer: TraceWriter, path: Path) -> None:
    write(writer, setting(), EndsSoon(1), Reported(3))
    writer.close()

    assert sorted(ids(path)[::2]) == [1, 3]


def test_earlier_content_is_replaced_at_the_first_write(path: Path) -> None:
    path.write_text("old " * 1000)
    writer = TraceWriter(path)
    assert path.read_text().startswith("old")
    write(writer, setting(), Reported(1))
    writer.close()

    assert ids(path)[::2] == [1]


def test_file_without_traces_is_left_as_it_was(path: Path) -> None:
    TraceWriter(path).close()
    assert not path.exists()
    path.write_text("old")
    TraceWriter(path).close()

    assert path.read_text() == "old"


def test_full_disk_loses_traces_and_is_logged_once(
    writer: TraceWriter, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The file stays valid, and traces are written again once there is room."""
    caplog.set_level(logging.INFO)
    real, full = os.pwrite, [False]

    def pwrite(file: int, data: bytes, at: int) -> int:
        if full[0] and len(data) > 1:
            if at < 500:
                return real(file, data[:10], at)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    for id, has_room in ((1, True), (3, False), (5, False), (7, True)):
        full[0] = not has_room
        done = 2 if id == 7 else 1 if has_room else 0
        lost = writer.lost + (not has_room)
        write(writer, setting(), Reported(id))
        wait_until(partial(_is_done, writer, path, lost, 2 * done or 2))
    writer.close()

    assert writer.lost == 2
    assert ids(path)[::2] == [1, 7]
    assert [each.message for each in caplog.records] == [
        f"traces are lost: file={path} reason=No space left on device",
        f"traces are written again: file={path}",
    ]


def _is_done(writer: TraceWriter, path: Path, lost: int, traces: int) -> bool:
    try:
        return writer.lost == lost and len(ids(path)) == traces
    except ValueError:  # read while it was written
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for the writer's thread."""
    until_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.002)


def _size(path: Path) -> int:
    return path.stat().st_size


def test_second_server_cannot_use_the_file(writer: TraceWriter, path: Path) -> None:
    assert unusable(path) == "another server writes to it"
    writer.close()

    assert unusable(path) is None
    assert not path.exists()


def test_unusable_paths(tmp_path: Path) -> None:
    """Pipes would block, and a device is no file."""
    os.mkfifo(tmp_path / "pipe")

    assert unusable(tmp_path / "no" / "traces") == "No such file or directory"
    assert unusable(tmp_path) == "Is a directory"
    assert unusable(Path("/dev/null")) == "it is not a regular file"
    assert unusable(tmp_path / "pipe") == "it is not a regular file"


def test_numbered_file_follows_no_link(writer: TraceWriter, path: Path, caplog: Any) -> None:
    """Others can foresee its name."""
    target = path.with_name("target")
    target.write_text("kept")
    path.with_name("traces.0").symlink_to(target)
    write(writer, setting(frequency=1), Reported(1))
    writer.close()

    assert target.read_text() == "kept"
    assert "traces are lost" in caplog.text


def test_array_is_valid_after_each_append(path: Path) -> None:
    file = JsonArrayFile(path)
    found = []
    for number in range(3):
        file.append([b"%d" % number, b"{}"])
        found.append(json.loads(path.read_bytes()))
    file.close()

    assert found == [[0, {}], [0, {}, 1, {}], [0, {}, 1, {}, 2, {}]]
