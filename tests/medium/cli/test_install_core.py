"""`install-core`, with pip's own variables instead of an index."""

import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from openai_frontend.cli import install_core, main
from openai_frontend.runtime.triton_interface import WHEEL, WHEEL_FOLDER
from openai_frontend.triton import library

COMMAND = f"{sys.executable} -m pip install --no-deps {WHEEL}\n"
METADATA = "nvidia_pytriton-0.7.0.dist-info"


@pytest.fixture
def without_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip installs in, in which libraries are found."""
    folder = tmp_path / "installed"
    monkeypatch.setattr(library, "IMAGE_LIBRARY", tmp_path / "absent.so")
    monkeypatch.setattr(library, "_wheel_folder", lambda: folder / WHEEL_FOLDER)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_TARGET", str(folder))
    return folder


def write_wheel(folder: Path) -> None:
    with ZipFile(folder / "nvidia_pytriton-0.7.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{WHEEL_FOLDER}/libtritonserver-0.so", "")
        archive.writestr(
            f"{METADATA}/METADATA",
            "Metadata-Version: 2.1\nName: nvidia-pytriton\nVersion: 0.7.0\n"
            "Requires-Dist: numpy<2\n",
        )
        archive.writestr(
            f"{METADATA}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{METADATA}/RECORD", "")


def test_library_is_installed(
    tmp_path: Path, without_library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command is printed before pip runs, NumPy stays as it is, and the library is found."""
    write_wheel(tmp_path)

    assert main(["install-core"]) == 0
    output = capfd.readouterr().out
    assert output.startswith(COMMAND)
    assert output.endswith(f"library is {without_library}/{WHEEL_FOLDER}/libtritonserver-0.so\n")
    assert not (without_library / "numpy").exists()


def test_failure_of_pip(without_library: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """pip's own reason is followed by what else helps."""
    assert main(["install-core"]) == 1
    captured = capfd.readouterr()
    assert captured.out.startswith(COMMAND)
    assert "No matching distribution" in captured.err
    assert captured.err.splitlines()[-1].startswith("openai-frontend: pip ended with exit code 1")


def test_environment_without_pip(
    without_library: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command for uv is printed instead."""
    monkeypatch.setattr(install_core, "_has_pip", lambda: False)

    assert main(["install-core"]) == 1
    assert capfd.readouterr().err == (
        "openai-frontend: this environment has no pip; run: "
        f"uv pip install --python {sys.executable} --no-deps {WHEEL}\n"
    )


def test_library_that_is_installed_already(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is installed beside a library that is found."""
    assert main(["install-core"]) == 1
    captured = capfd.readouterr()
    assert (captured.out, str(library.find()) in captured.err) == ("", True)
