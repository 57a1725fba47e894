"""Files that other processes read or write meanwhile."""

import os
import stat
from pathlib import Path

import pytest

from openai_frontend.runtime.files import file_stamp, replace_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def test_replaced_file_has_another_stamp(path: Path) -> None:
    """Even with the same size and modification time."""
    before = path.stat()
    stamp = file_stamp(path)
    replace_file(path, b"new")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert path.read_bytes() == b"new"
    assert file_stamp(path) != stamp


def test_file_that_is_written_in_place_has_another_stamp(path: Path) -> None:
    """As by `rsync --inplace --times` and `cp --preserve`, which set the modification time."""
    before = path.stat()
    stamp = file_stamp(path)
    path.write_bytes(b"new")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert path.stat().st_ino == before.st_ino
    assert file_stamp(path) != stamp


def test_missing_file_has_no_stamp(path: Path) -> None:
    """Whoever reads it gets the reason."""
    path.unlink()

    assert file_stamp(path) is None


def test_open_file_keeps_its_content(path: Path) -> None:
    """A reader gets either the old or the new content."""
    with path.open("rb") as opened:
        replace_file(path, b"new")

        assert opened.read() == b"old"


def test_mode_is_masked(path: Path) -> None:
    """A private file is private from the start."""
    replace_file(path, b"new", mode=0o600)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_failure_leaves_the_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example on a full disk."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")

    assert [each.name for each in path.parent.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"
