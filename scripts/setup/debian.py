"""Extracts a file from a Debian package without root and without installing it."""

import ctypes
import shutil
import tempfile
from pathlib import Path

from scripts.setup.progress import CommandFailed, Progress


def fetch_file(progress: Progress, package: str, name: str, folder: Path) -> None:
    """Put the file `name` into `folder`, unless it is a library that is installed."""
    if ".so." in name and is_installed(name):
        return
    if not shutil.which("apt-get"):
        raise CommandFailed(f"{name} was not found: install it from your system's packages")
    with tempfile.TemporaryDirectory() as scratch:
        unpacked = download(progress, package, Path(scratch))
        shutil.copy(next(unpacked.rglob(name)), folder / name)


def is_installed(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def download(progress: Progress, package: str, scratch: Path) -> Path:
    """Unpack the newest `package`; with our own package lists: the machine's may be missing."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (scratch / name).mkdir(parents=True)
    folders = [f"Dir::State={scratch}/state", f"Dir::Cache={scratch}/cache"]
    options = [f"-o{option}" for option in (*folders, "APT::Sandbox::User=root")]
    progress.run(["apt-get", *options, "update"], cwd=scratch)
    progress.run(["apt-get", *options, "download", package], cwd=scratch)
    archive = next(scratch.glob("*.deb"))
    progress.run(["dpkg", "--extract", archive, scratch / "unpacked"])
    return scratch / "unpacked"
