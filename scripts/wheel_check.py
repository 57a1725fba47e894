"""`make wheel-check`: two builders' wheels of the last commit are equal and name no local path."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipfile import ZipFile, ZipInfo

from scripts import wheel

# Builders differ in folder, permissions, time and language.
_BUILDERS: dict[str, tuple[int, dict[str, str]]] = {
    "a": (0o022, {"TZ": "UTC", "LC_ALL": "C"}),
    "another-with-a-longer-name/b": (0o077, {"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8"}),
}


def main() -> int:
    commit = wheel.last_commit()
    with tempfile.TemporaryDirectory() as folder:
        builders = {Path(folder) / name: how for name, how in _BUILDERS.items()}
        builds = [_start(commit, each, *how) for each, how in builders.items()]
        outputs = [build.communicate()[0] for build in builds]
        if any(build.returncode for build in builds):
            print("\n".join(outputs))
            return 1
        one, other = [next((each / "dist").glob("*.whl")) for each in builders]
        local = {Path.cwd(), Path(folder), Path(sys.prefix), Path(sys.base_prefix)}
        problems = [*differences(one, other), *local_paths(one, local)]
    print("\n".join(problems) or f"{one.name}: two builds are equal")
    return 1 if problems else 0


def differences(one: Path, other: Path) -> Iterator[str]:
    """One line for each way in which two wheels differ: content, metadata, order, bytes, name."""
    first, second = _members(one), _members(other)
    for name in [name for name in first if name in second and first[name] != second[name]]:
        yield f"{name} differs: {first[name][1]}, {second[name][1]}"
    if list(first) != list(second):
        yield f"the members differ: {list(first)}, {list(second)}"
    if one.read_bytes() != other.read_bytes():
        yield "the bytes of the two wheels differ"
    if one.name != other.name:
        yield f"the names differ: {one.name}, {other.name}"


def local_paths(built: Path, local: Iterable[Path]) -> Iterator[str]:
    """One line for each file that names a local path: of the sources, the environment, the
    interpreter, its headers or nanobind.
    """
    members = _members(built)
    if not any(name.endswith(".so") for name in members):
        yield "the wheel has no extension"
    paths = {path for each in local for path in (each, each.resolve())} - {Path("/usr")}
    for name, (content, _) in members.items():
        for path in sorted(paths):
            if b"%b/" % bytes(path) in content:
                yield f"{name} contains {path}"


def _start(
    commit: str, folder: Path, umask: int, environment: dict[str, str]
) -> "subprocess.Popen[str]":
    sources = folder / "sources"
    sources.mkdir(parents=True)
    wheel.unpack(commit, sources)
    for path in sources.rglob("*"):  # as in a clone of this builder
        path.chmod(path.stat().st_mode & ~umask)
        os.utime(path)
    command, needed = wheel.building(commit, sources, folder / "dist")
    return subprocess.Popen(
        command, umask=umask, env={**needed, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _members(path: Path) -> dict[str, tuple[bytes, tuple[object, ...]]]:
    """Name -> content and metadata in the archive."""
    with ZipFile(path) as archive:
        return {each.filename: (archive.read(each), _metadata(each)) for each in archive.infolist()}


def _metadata(member: ZipInfo) -> tuple[object, ...]:
    return member.date_time, oct(member.external_attr >> 16), member.extra, member.compress_size


if __name__ == "__main__":
    sys.exit(main())
