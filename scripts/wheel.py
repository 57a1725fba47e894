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

DIST = Path("dist")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(folder))
        command, environment = building(Path(folder), DIST)
        code = subprocess.run(command, env=environment, check=False).returncode
    if code == 0:
        print(f"the wheel of {_git('log', '-1', '--format=%h, %s').decode().strip()}")
    return code


def unpack(folder: Path) -> None:
    """The files of the last commit, as git has them."""
    with tarfile.open(fileobj=BytesIO(_git("archive", "--format=tar", "HEAD"))) as files:
        files.extractall(folder, filter="data")


def building(sources: Path, target: Path) -> tuple[list[str], dict[str, str]]:
    """The command that writes the wheel of these sources into a folder, and its environment."""
    # Nothing is fetched: what builds is what is installed here, at its locked version.
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", *options]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    epoch = _git("log", "-1", "--format=%ct").decode().strip()
    environment = {**os.environ, "PATH": path, "SOURCE_DATE_EPOCH": epoch}
    return [*command, f"--wheel-dir={target}", str(sources)], environment


def _git(*command: str) -> bytes:
    return subprocess.run(["git", *command], stdout=subprocess.PIPE, check=True).stdout  # noqa: S607  the developer's own


if __name__ == "__main__":
    sys.exit(main())
