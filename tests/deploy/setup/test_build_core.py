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
from scripts.setup.progress import CommandFailed, Progress


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


@pytest.mark.parametrize("name", build_core.CHECKOUTS)
def test_wrong_checkout(sources, complete, name):
    """One line has the folder, the repository that belongs there, and the missing file."""
    repository, file = build_core.CHECKOUTS[name]
    (sources / name / file).unlink()

    assert [*build_core.problems(sources)] == [
        f"{sources / name} is no checkout of {repository}: {file} is missing"
    ]


def test_core_that_is_too_old(sources, complete):
    """Its C API is compared with the one that the extension requires."""
    header = sources / "core" / build_core.CHECKOUTS["core"][1]
    header.write_text("#define TRITONSERVER_API_VERSION_MINOR 32\n")

    [line] = build_core.problems(sources)
    assert line.endswith("declares C API 1.32; the gateway needs 1.33 or later")


@pytest.mark.parametrize("tool", build_core.TOOLS)
def test_missing_tool(sources, complete, tool):
    """One line has its name and how to install it."""
    complete.setattr(build_core, "program", lambda name: None if name == tool else name)

    [line] = build_core.problems(sources)
    assert line == f"{tool} is not installed: {build_core.TOOLS[tool]}"


def test_missing_compiler(sources, complete):
    complete.setattr(build_core, "find_compiler", lambda: None)

    [line] = build_core.problems(sources)
    assert line == "no C++ compiler (g++ or clang++) was found: apt-get install g++"


def test_missing_library(sources, complete):
    """One line has its header and the package that has it."""
    complete.setattr(build_core, "missing_headers", lambda _: ["numa.h"])

    [line] = build_core.problems(sources)
    assert line == "numa.h does not exist: apt-get install libnuma-dev"


def test_headers_are_looked_up_by_the_compiler(monkeypatch):
    """Only those that it does not find are reported."""
    monkeypatch.setattr(build_core, "HEADERS", {"vector": "-", "no/such.h": "libno-dev"})

    assert build_core.missing_headers("c++") == ["no/such.h"]


def test_python_without_a_shared_library(sources, complete):
    def missing() -> Path:
        raise python_backend.PythonBackendUnavailable("no libpython")

    complete.setattr(python_backend, "shared_library", missing)

    assert [*build_core.problems(sources)] == ["no libpython"]


def test_command_reports_each_problem(tmp_path, capsys):
    """It exits with 1 before it compiles anything."""
    code = build_core.main([f"--sources={tmp_path}", f"--output={tmp_path / 'out'}"])

    lines = capsys.readouterr().err.splitlines()
    assert code == 1
    assert len(lines) >= len(build_core.CHECKOUTS)
    assert all(line.startswith("build_core: ") for line in lines)
    assert not (tmp_path / "out").exists()


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


def test_failed_compiler_is_reported(sources, complete, tmp_path, capsys):
    """Its last lines are the message."""

    def run(*_: object) -> None:
        raise CommandFailed("error: no\nfailed: cmake")

    complete.setattr(Progress, "run", run)
    complete.setattr(build_core, "FOR_CMAKE", tmp_path / "cmake")

    assert build_core.main([f"--sources={sources}", f"--output={tmp_path / 'out'}"]) == 1
    assert capsys.readouterr().err == "build_core: error: no\nbuild_core: failed: cmake\n"


def test_library_that_cannot_be_used(tmp_path):
    """The gateway's own error is the message."""
    made = tmp_path / "libtritonserver.so"
    subprocess.run(["cc", "-shared", "-o", made, "-x", "c", "/dev/null"], check=True)  # noqa: S607

    [line] = build_core.load_problems(made)
    assert f"cannot use {made}" in line
    assert "undefined symbol: TRITONSERVER_ApiVersion" in line
