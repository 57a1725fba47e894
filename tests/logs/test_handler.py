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


def test_order(tmp_path: Path) -> None:
    """Lines are written in the order in which they were put."""
    with (tmp_path / "log").open("wb") as file:
        writer = BackgroundWriter(file.fileno(), notice=notice)
        for number in range(1000):
            writer.put(f"{number}\n")
        assert writer.flush(10)

    assert (tmp_path / "log").read_text().split() == list(map(str, range(1000)))


def test_pipe_that_nobody_reads(pipe: tuple[int, int]) -> None:
    """Lines beyond the limit are counted, putting takes no time, and the log tells how many."""
    reader, end = pipe
    writer = BackgroundWriter(end, notice=notice, max_lines=100)
    for _ in range(400):
        writer.put("x" * 4095 + "\n")
    assert writer.flush(0.01) is False
    lost = writer.lost
    assert 200 < lost < 400

    said = threading.Event()
    threading.Thread(target=drain, args=(reader, said), daemon=True).start()
    assert writer.flush(10)
    writer.put("again\n")
    assert said.wait(10)


def drain(reader: int, said: threading.Event) -> None:
    got = b""
    while b"again" not in got:
        got += os.read(reader, 65536)
    if b" lost\n" in got:
        said.set()


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that finds no room on the disk is counted; the next one that does tells of it."""
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
    assert writer.flush(10)
    assert writer.lost == 1
    full = False
    writer.put("second\n")
    assert writer.flush(10)
    os.close(file)

    assert path.read_text().splitlines() == ["first"[:3], "1 lost", "second"]


def test_dev_full() -> None:
    """The same with a device that is always full."""
    with open("/dev/full", "wb", buffering=0) as full:
        handler = NonBlockingHandler(full.fileno(), make_formatter("json"))
        for _ in range(5):
            handler.handle(logging.LogRecord("x", 20, __file__, 1, "line", (), None))
        assert handler.writer.flush(10)

    assert handler.writer.lost == 5


def test_record_that_cannot_be_written(tmp_path: Path) -> None:
    """A wrong call of the log ends no request: a line tells its place, and nothing it held."""
    with (tmp_path / "log").open("wb") as file:
        handler = NonBlockingHandler(file.fileno(), make_formatter("json"))
        handler.handle(logging.LogRecord("x", 20, "here.py", 7, "%d", ("canary",), None))
        assert handler.writer.flush(10)

    line = json.loads((tmp_path / "log").read_text())
    assert line["message"] == "a line of x (here.py:7) could not be written: TypeError"


def test_non_blocking_descriptor(pipe: tuple[int, int]) -> None:
    """A pipe that somebody made non-blocking loses nothing while its reader is slow."""
    reader, end = pipe
    os.set_blocking(end, False)
    writer = BackgroundWriter(end, notice=notice)
    for _ in range(100):
        writer.put("x" * 4095 + "\n")
    left = 100 * 4096
    while left:
        left -= len(os.read(reader, 65536))
        time.sleep(0.001)

    assert writer.lost == 0


def test_fork(tmp_path: Path) -> None:
    """A process that is forked off has a thread of its own."""
    with (tmp_path / "log").open("ab") as file:
        writer = BackgroundWriter(file.fileno(), notice=notice)
        child = os.fork()
        if child == 0:
            writer.put("child\n")
            os._exit(0 if writer.flush(10) else 1)
        assert os.waitpid(child, 0)[1] == 0

    assert (tmp_path / "log").read_text() == "child\n"
