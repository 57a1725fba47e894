"""The sources and tools of `make wheel`, and the comparison of `make wheel-check`, which builds the
wheel twice and so runs on its own.
"""

import subprocess
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import pytest

from scripts import wheel
from scripts.setup import lock
from scripts.wheel_check import differences, local_paths

EXTENSION = {"package/core.so": b"\x7fELF"}


def write(path: Path, members: dict[str, bytes], *, year: int = 2020, mode: int = 0o644) -> Path:
    path.parent.mkdir()
    with ZipFile(path, "w") as archive:
        for name, content in members.items():
            info = ZipInfo(name, (year, 1, 1, 0, 0, 0))
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return path


def commit(folder: Path, subject: str) -> None:
    """With a file that contains the subject."""
    (folder / "file").write_text(subject)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "file"], [*author, "commit", "-qm", subject]):
        subprocess.run(["git", *command], cwd=folder, check=True)  # noqa: S607


def test_wheel_is_of_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that is made during the build changes neither its sources nor its name."""
    monkeypatch.chdir(tmp_path)
    commit(tmp_path, "first")
    built = wheel.last_commit()
    commit(tmp_path, "second")
    wheel.unpack(built, tmp_path / "sources")

    assert (tmp_path / "sources" / "file").read_text() == "first"
    assert wheel.described(built).endswith(", first")


def test_wheel_is_built_with_what_builds_the_extension() -> None:
    """The tools have the versions of the set-up, and are few."""
    tools = lock.read_lock("tools/build.txt")

    assert {each.partition("==")[0] for each in tools} >= {"nanobind", "scikit-build-core"}
    assert set(tools) <= set(lock.read_lock("lock.txt"))
    assert len(tools) < 10


@pytest.mark.parametrize(
    ("members", "options", "line"),
    [
        ({"a": b"1", "b": b"3"}, {}, "b differs"),
        ({"a": b"1", "b": b"2"}, {"year": 2021}, "a differs"),
        ({"a": b"1", "b": b"2"}, {"mode": 0o600}, "a differs"),
        ({"b": b"2", "a": b"1"}, {}, "the members differ"),
        ({"a": b"1"}, {}, "the members differ"),
    ],
    ids=["content", "time", "permissions", "order", "absent"],
)
def test_each_difference_is_reported(tmp_path: Path, members, options, line) -> None:
    """With its member, and also as different bytes."""
    one = write(tmp_path / "x" / "p.whl", {"a": b"1", "b": b"2"})
    other = write(tmp_path / "y" / "p.whl", members, **options)

    first, *_, last = differences(one, other)

    assert first.startswith(line)
    assert last == "the bytes of the two wheels differ"


def test_local_path_is_reported(tmp_path: Path) -> None:
    """Of every file, in text or in the extension."""
    local = tmp_path / "sources"
    members = {**EXTENSION, "package/core.so": b"\x7fELF\0%b/native\0" % bytes(local)}
    built = write(tmp_path / "x" / "p.whl", members)

    assert list(local_paths(built, [local])) == [f"package/core.so contains {local}"]
    assert list(local_paths(built, [tmp_path / "elsewhere"])) == []


def test_wheel_without_extension_is_reported(tmp_path: Path) -> None:
    """Otherwise nothing of it would have been searched."""
    built = write(tmp_path / "x" / "p.whl", {"a": b"1"})

    assert list(local_paths(built, [])) == ["the wheel has no extension"]
