"""`make wheel`: the wheel of the last commit, the same bytes in every folder that it is built in.

Needs git; uncommitted changes and files that git does not know are not in it.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from scripts.setup.clients import TOOLS
from scripts.setup.install import pip
from scripts.setup.progress import CommandFailed, Progress

DIST = Path("dist")
BINARIES = TOOLS / "build" / "bin"  # of `scripts.setup --tool build`


def main() -> int:
    commit, progress = last_commit(), Progress(1)
    progress.begin(f"wheel of {described(commit)}")
    with tempfile.TemporaryDirectory() as folder:
        unpack(commit, Path(folder))
        command, environment = building(commit, Path(folder), DIST)
        try:
            progress.run(command, env=environment)
        except CommandFailed as error:
            progress.end("failed")
            sys.stderr.write(f"{error}\n")
            return 1
    progress.end()
    return 0


def last_commit() -> str:
    """Its hash: there may be another one before the build ends."""
    return _git("rev-parse", "HEAD").decode().strip()


def described(commit: str) -> str:
    return _git("log", "-1", "--format=%h, %s", commit).decode().strip()


def unpack(commit: str, folder: Path) -> None:
    """The files of a commit, as git has them."""
    with tarfile.open(fileobj=BytesIO(_git("archive", "--format=tar", commit))) as files:
        files.extractall(folder, filter="data")


def building(commit: str, sources: Path, target: Path) -> tuple[list[str], dict[str, str]]:
    """The command that writes the wheel of a commit's sources into a folder, and its environment.

    Nothing is fetched: what builds is installed at its locked version.
    """
    options = ["--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={target}"]
    command = [*pip("wheel", BINARIES / "python"), "--verbose", *options, str(sources)]
    path = os.pathsep.join([str(BINARIES.absolute()), os.environ["PATH"]])
    epoch = _git("log", "-1", "--format=%ct", commit).decode().strip()
    return command, {**os.environ, "PATH": path, "SOURCE_DATE_EPOCH": epoch}


def _git(*command: str) -> bytes:
    return subprocess.run(["git", *command], stdout=subprocess.PIPE, check=True).stdout  # noqa: S607  the developer's own


if __name__ == "__main__":
    sys.exit(main())
