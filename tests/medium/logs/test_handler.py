"""The thread that writes the log: nothing blocks who logs, nothing is lost in silence."""

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_frontend.logs.formatters import make_formatter
from openai_frontend.logs.handler import BackgroundWriter, NonBlockingHandler


def notice(count: int) -> str:
    return f"{count} lost\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_lines_are_written_in_order(tmp_path: Path) -> None:
    """1,000 lines keep their order."""
    with (tmp_path / "log").open("wb") as file:
        writer = BackgroundWriter(file.fileno(), notice=notice)
        for number in range(1000):
            writer.put(f"{number}\n")
        assert writer.flush(60)

    assert (tmp_path / "log").read_text().split() == list(map(str, range(1000)))


def test_blocked_pipe_does_not_block_the_caller(pipe: tuple[int, int]) -> None:
    """Lines beyond the limit are dropped and counted, and the log reports their number."""
    reader, end = pipe
    writer = BackgroundWriter(end, notice=notice, max_lines=100)
    for _ in range(400):
        writer.put("x" * 4095 + "\n")
    assert writer.flush(0.01) is False
    dropped = writer.dropped
    assert 200 < dropped < 400

    reported = threading.Event()
    threading.Thread(target=drain, args=(reader, reported), daemon=True).start()
    assert writer.flush(60)
    writer.put("again\n")
    assert reported.wait(60)


def drain(reader: int, reported: threading.Event) -> None:
    got = b""
    while b"again" not in got:
        got += os.read(reader, 65536)
    if b" lost\n" in got:
        reported.set()


def test_full_disk_drops_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next line that can be written is preceded by the number of dropped lines."""
    path = tmp_path / "log"
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    writer = BackgroundWriter(file, notice=notice)
    write, full = os.write, True

    def short(fd: int, data: bytes) -> int:
        if fd != file or not full:
            return write(fd, data)
        if len(data) > 3:
            return write(fd, data[:3])  # what was left
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("openai_frontend.logs.handler.os.write", short)
    writer.put("first\n")
    assert writer.flush(60)
    assert writer.dropped == 1
    full = False
    writer.put("second\n")
    assert writer.flush(60)
    os.close(file)

    assert path.read_text().splitlines() == ["first"[:3], "1 lost", "second"]


def test_full_device_drops_lines() -> None:
    """Each line that cannot be written is counted."""
    with open("/dev/full", "wb", buffering=0) as full:
        handler = NonBlockingHandler(full.fileno(), make_formatter("json"))
        for _ in range(5):
            handler.handle(logging.LogRecord("x", 20, __file__, 1, "line", (), None))
        assert handler.writer.flush(60)

    assert handler.writer.dropped == 5


def test_record_that_cannot_be_formatted(tmp_path: Path) -> None:
    """A wrong logging call fails no request: a line reports its location without its content."""
    with (tmp_path / "log").open("wb") as file:
        handler = NonBlockingHandler(file.fileno(), make_formatter("json"))
        handler.handle(logging.LogRecord("x", 20, "here.py", 7, "%d", ("canary",), None))
        assert handler.writer.flush(60)

    line = json.loads((tmp_path / "log").read_text())
    assert line["message"] == "cannot format a log record of x (here.py:7): TypeError"


def test_non_blocking_descriptor_drops_nothing(pipe: tuple[int, int]) -> None:
    """A slow reader of a non-blocking pipe gets every line."""
    reader, end = pipe
    os.set_blocking(end, False)
    writer = BackgroundWriter(end, notice=notice)
    for _ in range(100):
        writer.put("x" * 4095 + "\n")
    left = 100 * 4096
    while left:
        left -= len(os.read(reader, 65536))
        time.sleep(0.001)

    assert writer.dropped == 0


def test_forked_process_can_log(tmp_path: Path) -> None:
    """It starts its own writer thread."""
    with (tmp_path / "log").open("ab") as file:
        writer = BackgroundWriter(file.fileno(), notice=notice)
        child = os.fork()
        if child == 0:
            writer.put("child\n")
            os._exit(0 if writer.flush(60) else 1)
        assert os.waitpid(child, 0)[1] == 0

    assert (tmp_path / "log").read_text() == "child\n"
