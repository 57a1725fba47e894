"""The wheel is reproducible: every build of a commit has the same bytes."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import pytest

from scripts import wheel

ROOT = Path(__file__).parents[3]
# Builders differ in folder, permissions, time and language.
BUILDERS: dict[str, tuple[int, dict[str, str]]] = {
    "a": (0o022, {"TZ": "UTC", "LC_ALL": "C"}),
    "another-with-a-longer-name/b": (0o077, {"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8"}),
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One wheel of each builder; the builders run concurrently."""
    folder = tmp_path_factory.mktemp("wheels")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        builds = [_start(folder / name, *how) for name, how in BUILDERS.items()]
    said = [build.communicate()[0] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], "\n".join(said)
    return [next((folder / name / "dist").glob("*.whl")) for name in BUILDERS]


def _start(folder: Path, umask: int, environment: dict[str, str]) -> "subprocess.Popen[str]":
    sources = folder / "sources"
    sources.mkdir(parents=True)
    wheel.unpack(sources)
    for path in sources.rglob("*"):  # as in a clone of this builder
        path.chmod(path.stat().st_mode & ~umask)
        os.utime(path)
    command, needed = wheel.building(sources, folder / "dist")
    return subprocess.Popen(
        command, umask=umask, env={**needed, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def members(path: Path) -> dict[str, tuple[bytes, tuple[object, ...]]]:
    """Name -> content and metadata in the archive."""
    with ZipFile(path) as archive:
        return {each.filename: (archive.read(each), _told(each)) for each in archive.infolist()}


def _told(member: ZipInfo) -> tuple[object, ...]:
    return member.date_time, oct(member.external_attr >> 16), member.extra, member.compress_size


@pytest.mark.slow
def test_wheel_is_reproducible(wheels: list[Path]) -> None:
    """Folder, umask, time zone and language of the builder do not matter."""
    one, other = map(members, wheels)
    assert list(one) == list(other)
    differing = [name for name in one if one[name] != other[name]]
    assert differing[:1] == [], [each[name][1] for name in differing[:1] for each in (one, other)]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    assert wheels[0].name == wheels[1].name


@pytest.mark.slow
def test_wheel_contains_no_local_path(wheels: list[Path]) -> None:
    """Not even those of the environment, the interpreter, its headers or nanobind."""
    places = {ROOT, wheels[0].parents[2], *map(Path, (sys.prefix, sys.base_prefix))}
    places |= {each.resolve() for each in places}
    contents = {name: content for name, (content, _) in members(wheels[0]).items()}
    assert any(name.endswith(".so") for name in contents)
    named = [
        (name, str(place))
        for name, content in contents.items()
        for place in places - {Path("/usr")}
        if b"%b/" % bytes(place) in content
    ]
    assert named == []
