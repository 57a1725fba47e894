"""Extracts files from Debian packages without root and without installing them."""

import ctypes
import shutil
import tempfile
from collections.abc import Sequence
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


def fetch_program(progress: Progress, packages: Sequence[str], folder: Path) -> None:
    """Unpack packages into `folder`, with what they need beyond what is installed."""
    if not shutil.which("apt-get"):
        raise CommandFailed(f"apt-get was not found: install {packages[0]} from your system")
    with tempfile.TemporaryDirectory() as scratch:
        apt = updated(progress, Path(scratch))
        only = ["--yes", "--no-install-recommends", "--download-only"]
        progress.run([*apt, "install", *only, *packages], cwd=Path(scratch))
        for archive in sorted(Path(scratch).glob("cache/archives/*.deb")):
            progress.run(["dpkg", "--extract", archive, folder])


def updated(progress: Progress, scratch: Path) -> list[str | Path]:
    """The command of apt-get with package lists of our own: the machine's may be missing."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (scratch / name).mkdir(parents=True)
    folders = [f"Dir::State={scratch}/state", f"Dir::Cache={scratch}/cache"]
    options = [f"-o{option}" for option in (*folders, "APT::Sandbox::User=root")]
    progress.run(["apt-get", *options, "update"], cwd=scratch)
    return ["apt-get", *options]


def download(progress: Progress, package: str, scratch: Path) -> Path:
    """Unpack the newest `package`."""
    progress.run([*updated(progress, scratch), "download", package], cwd=scratch)
    archive = next(scratch.glob("*.deb"))
    progress.run(["dpkg", "--extract", archive, scratch / "unpacked"])
    return scratch / "unpacked"
