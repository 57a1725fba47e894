"""Set-up errors about packages are one line: what was found, what is needed, what to do."""

import io
import json
import platform
import sys
from pathlib import Path

import pytest

from scripts.setup import command, no_wheel
from scripts.setup.install import Step
from scripts.setup.progress import CommandFailed
from scripts.setup.stamps import Stamp

HERE = f"Python {platform.python_version()} on {platform.machine()}"
NOT_FOUND = (
    "ERROR: Could not find a version that satisfies the requirement thing==1.0 (from versions: 2)\n"
    "ERROR: No matching distribution found for thing==1.0\nfailed: python -m pip install"
)
FILES = [
    "thing-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    "thing-1.0-cp313-cp313-manylinux_2_28_x86_64.whl",
    "thing-1.0-cp311-cp311-win_amd64.whl",
    "thing-1.0.1-cp311-cp311-manylinux_2_28_x86_64.whl",
    "other_thing-1.0-py3-none-any.whl",
]


@pytest.fixture
def index(monkeypatch):
    """Answers with these files."""

    def answer(*files: str) -> None:
        def urlopen(request, timeout):
            return io.BytesIO(json.dumps({"files": [{"filename": f} for f in files]}).encode())

        monkeypatch.setattr("urllib.request.urlopen", urlopen)

    return answer


def test_wheels_for_other_pythons_are_named(index):
    """And the Python to use."""
    index(*FILES)

    line = no_wheel.explained(NOT_FOUND)

    assert line is not None
    assert line.startswith(f"thing 1.0 has no file for {HERE}")
    assert line.endswith(
        "; there are cp312-cp312-manylinux_2_28_x86_64, cp313-cp313-manylinux_2_28_x86_64:"
        " use make PYTHON=python3.12"
    )


def failing(text: str, folder: Path) -> Step:
    def work(progress):
        raise CommandFailed(text)

    return Step("packages", 0, Stamp(folder / "stamp", "x"), work)


def test_setup_ends_with_that_line(index, capsys, tmp_path):
    """pip's forty lines before it are not repeated."""
    index(*FILES)

    assert command.run([failing(NOT_FOUND, tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("setup: thing 1.0 has no file for ")
    assert error.count("\n") == 1


def test_unknown_vllm_is_one_line(monkeypatch, capsys):
    """`make setup VLLM=0.19.0`: what the locks have is named."""
    monkeypatch.setattr(sys, "argv", ["scripts.setup", "--vllm", "0.19.0"])

    assert command.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("setup: VLLM=0.19.0 is not known; cpu, cuda or none is needed: ")
    assert f"the locks have vLLM {command.LOCKED_VLLM}" in error
    assert error.count("\n") == 1
