"""What `make core` reports before it compiles anything, and what it writes. The compilers are not
run: they take minutes and NVIDIA's sources.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from openai_frontend.runtime.triton_interface import STUB
from openai_frontend.triton import library, python_backend
from scripts import build_core
from scripts.setup.progress import Progress


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Checkouts with the files that identify them."""
    folder = tmp_path / "sources"
    for name, (_, file) in build_core.CHECKOUTS.items():
        (folder / name / file).parent.mkdir(parents=True)
        (folder / name / file).write_text("#define TRITONSERVER_API_VERSION_MINOR 34\n")
    resources = folder / "python_backend" / "src" / "resources"
    resources.mkdir()
    (resources / "triton_python_backend_utils.py").touch()
    return folder


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with all tools and libraries."""
    monkeypatch.setattr(build_core, "program", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(build_core, "find_compiler", lambda: "c++")
    monkeypatch.setattr(build_core, "missing_headers", lambda _: [])
    return monkeypatch


def test_complete_machine(sources, complete):
    assert [*build_core.problems(sources)] == []


def test_each_lack_is_one_line(sources, complete):
    """With the name of what is missing or too old, and what to do."""
    repository, header = build_core.CHECKOUTS["core"]
    tool = next(iter(build_core.TOOLS))
    (sources / "core" / header).write_text("#define TRITONSERVER_API_VERSION_MINOR 32\n")
    complete.setattr(build_core, "program", lambda name: None if name == tool else name)
    complete.setattr(build_core, "find_compiler", lambda: None)

    assert {
        f"{tool} is not installed: {build_core.TOOLS[tool]}",
        "no C++ compiler (g++ or clang++) was found: apt-get install g++",
    } <= {*build_core.problems(sources)}
    assert any(
        line.endswith("declares C API 1.32; the gateway needs 1.33 or later")
        for line in build_core.problems(sources)
    )
    (sources / "core" / header).unlink()
    missing = f"{sources / 'core'} is no checkout of {repository}: {header} is missing"
    assert missing in [*build_core.problems(sources)]


def compiled(command: Sequence[str | Path]) -> None:
    """In place of the compilers: write what the command would build."""
    words = [str(word) for word in command]
    if "--build" in words:
        folder = Path(words[words.index("--build") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("libtritonserver.so", "libtriton_python.so", STUB):
            (folder / name).write_text(folder.name)


def test_output_is_a_server_folder(sources, tmp_path, monkeypatch):
    """The gateway finds backend and stub from the path of the library."""
    commands: list[list[str]] = []

    def run(self: Progress, command: Sequence[str | Path]) -> None:
        commands.append([str(word) for word in command])
        compiled(command)

    monkeypatch.setattr(Progress, "run", run)
    monkeypatch.setattr(build_core, "BUILD", tmp_path / "build")
    monkeypatch.setattr(build_core, "FOR_CMAKE", tmp_path / "build" / "cmake")
    output = tmp_path / "out"
    build_core.build(sources, output, "2.70.0", jobs=2)
    python_backend.install(tmp_path / "python", library.server_folder(output / "lib" / "x.so"))

    assert (tmp_path / "python" / STUB).is_file()
    assert "-DTRITON_VERSION=2.70.0" in commands[0]
    assert [command[1] for command in commands] == ["--fresh", "--build"] * 2


def test_library_that_cannot_be_used(tmp_path):
    """The gateway's own error is the message."""
    made = tmp_path / "libtritonserver.so"
    subprocess.run(["cc", "-shared", "-o", made, "-x", "c", "/dev/null"], check=True)  # noqa: S607

    [line] = build_core.load_problems(made)
    assert f"cannot use {made}" in line
    assert "undefined symbol: TRITONSERVER_ApiVersion" in line
