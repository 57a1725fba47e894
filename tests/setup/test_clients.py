import ctypes.util
import sys
from pathlib import Path

import pytest

from scripts.setup import clients, debian
from scripts.setup.progress import CommandFailed, Progress


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A work tree with two locks, whose environments are as they should be."""
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


def test_nothing_is_done_twice(locks):
    """Where no lock has changed there is nothing to do."""
    assert stale() == []


def test_a_changed_lock_concerns_its_own_client(locks):
    """One client's environment is made anew, and no other."""
    (locks / "aiperf.txt").write_text("aiperf==2\n")

    assert stale() == ["client aiperf"]


def test_another_library_concerns_its_client(locks, monkeypatch):
    """A change of what is taken from Debian is a change of the environment."""
    monkeypatch.setitem(clients.LIBRARIES, "genai-perf", ("libb64-1", "libb64.so.1"))

    assert stale() == ["client genai-perf"]


def test_a_new_lock_is_a_new_client(locks):
    """A lock is all that a further client needs."""
    (locks / "new.txt").write_text("new==1\n")

    assert stale() == ["client new"]


def test_an_installed_library_is_not_fetched(tmp_path):
    """What the loader finds by itself needs no package."""
    libc = str(ctypes.util.find_library("c"))

    debian.fetch_library(Progress(1), "libc6", libc, tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_system_without_apt_is_told_what_is_missing(tmp_path, monkeypatch):
    """Elsewhere than on Debian or Ubuntu the message names the library."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(CommandFailed, match=r"libnone\.so\.9 was not found"):
        debian.fetch_library(Progress(1), "libnone9", "libnone.so.9", tmp_path)


def test_a_library_is_taken_out_of_its_package(tmp_path, monkeypatch):
    """The package is unpacked in a scratch folder, and the library alone is kept."""
    for name, script in FAKE_APT.items():
        (tmp_path / name).write_text(f"#!{sys.executable}\n{script}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    kept = tmp_path / "kept"
    kept.mkdir()

    debian.fetch_library(Progress(1), "libnone9", "libnone.so.9", kept)

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
