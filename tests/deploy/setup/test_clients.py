import ctypes.util
import sys
from pathlib import Path

import pytest

from scripts.setup import clients, debian
from scripts.setup.progress import CommandFailed, Progress


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A work tree with two locks and up-to-date environments."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / clients.LOCKS
    folder.mkdir(parents=True)
    for name in ("aiperf", "genai-perf"):
        (folder / f"{name}.txt").write_text(f"{name}==1\n")
    for step in clients.steps():
        step.stamp.write()
    return folder


def stale() -> list[str]:
    return [step.title for step in clients.steps() if not step.stamp.fresh]


def test_unchanged_locks_need_no_setup(locks):
    """No step is stale."""
    assert stale() == []


def test_changed_lock_rebuilds_its_own_client(locks):
    """Other clients' environments are kept."""
    (locks / "aiperf.txt").write_text("aiperf==2\n")

    assert stale() == ["client aiperf"]


def test_changed_library_rebuilds_its_client(locks, monkeypatch):
    """Libraries from Debian packages are part of the environment."""
    monkeypatch.setitem(clients.DEBIAN_FILES, "genai-perf", [("libb64-1", "libb64.so.1")])

    assert stale() == ["client genai-perf"]


def test_new_lock_adds_a_client(locks):
    """A client needs only a lock."""
    (locks / "new.txt").write_text("new==1\n")

    assert stale() == ["client new"]


def test_tool_needs_the_pip_that_installs_it(locks):
    """In a new checkout, `--tool` makes `.venv` first, and then the tool's environment."""
    lock = clients.TOOL_LOCKS / "wheels.txt"
    lock.parent.mkdir()
    lock.write_text("cibuildwheel==1\n")

    assert [step.title for step in clients.tool_steps("wheels")] == [
        "Python environment",
        "tool wheels",
    ]


def test_installed_library_is_not_downloaded(tmp_path):
    """A library that the loader finds needs no package."""
    libc = str(ctypes.util.find_library("c"))

    debian.fetch_file(Progress(1), "libc6", libc, tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_system_without_apt(tmp_path, monkeypatch):
    """On systems other than Debian and Ubuntu, the error names the library."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(CommandFailed, match=r"libnone\.so\.9 was not found"):
        debian.fetch_file(Progress(1), "libnone9", "libnone.so.9", tmp_path)


def test_library_is_extracted_from_its_package(tmp_path, monkeypatch):
    """Only the library is kept of the unpacked package."""
    for name, script in FAKE_APT.items():
        (tmp_path / name).write_text(f"#!{sys.executable}\n{script}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    kept = tmp_path / "kept"
    kept.mkdir()

    debian.fetch_file(Progress(1), "libnone9", "libnone.so.9", kept)

    assert [(path.name, path.read_text()) for path in kept.iterdir()] == [("libnone.so.9", "ELF")]


FAKE_APT = {
    "apt-get": """
import sys, pathlib
if sys.argv[-2] == "download":
    pathlib.Path(sys.argv[-1] + ".deb").write_text("")
""",
    "dpkg": """
import sys, pathlib
assert sys.argv[1] == "--extract" and sys.argv[2].endswith("libnone9.deb")
folder = pathlib.Path(sys.argv[3], "usr", "lib")
folder.mkdir(parents=True)
(folder / "libnone.so.9").write_text("ELF")
(folder / "README").write_text("")
""",
}
