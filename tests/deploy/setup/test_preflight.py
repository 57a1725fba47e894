import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.setup import preflight
from scripts.setup.python_version import python_problem

REPOSITORY = Path(__file__).parents[3]

GOOD = preflight.Machine(
    system="Linux",
    processor="x86_64",
    glibc=(2, 36),
    make="/usr/bin/make",
    compiler="g++",
    compiles_cxx20=True,
    python_header=Path("/usr/include/python3.11/Python.h"),
    has_python_header=True,
    has_ensurepip=True,
    root=Path("/home/user/openai-frontend"),
    free_bytes=20_000_000_000,
)

BAD = [
    ({"system": "Darwin"}, "Linux on x86_64 is needed, this is Darwin on x86_64"),
    ({"processor": "aarch64"}, "Linux on x86_64 is needed, this is Linux on aarch64"),
    ({"glibc": (2, 31)}, "glibc 2.35 or newer is needed, this is 2.31"),
    ({"glibc": None}, "glibc 2.35 or newer is needed, this is another C library"),
    ({"make": None}, "make is not installed: apt-get install make"),
    ({"compiler": None}, "no C++ compiler (g++ or clang++) was found: apt-get install g++"),
    ({"compiles_cxx20": False}, "g++ does not compile C++20"),
    ({"has_python_header": False}, "/usr/include/python3.11/Python.h does not exist"),
    ({"has_ensurepip": False}, "apt-get install python3-venv"),
    (
        {"free_bytes": 900_000_000},
        "3.0 GB of free disk is needed at /home/user/openai-frontend, 0.9 GB is there",
    ),
]


@pytest.mark.parametrize(("fault", "expected"), BAD)
def test_each_fault_is_one_line(fault, expected):
    """The line names what is missing."""

    line = preflight.first_problem(GOOD._replace(**fault), 3_000_000_000)

    assert line is not None
    assert expected in line
    assert "\n" not in line


def test_complete_machine_passes():
    """Nothing is reported."""

    assert preflight.first_problem(GOOD, 3_000_000_000) is None


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 12, 7), (3, 13, 1)])
def test_supported_pythons_pass(version):
    """Python 3.11 to 3.13 are accepted."""

    assert python_problem(version) == ""


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 8, 18), (3, 10, 13), (3, 14, 0)])
def test_unsupported_python_is_refused(version):
    """The message has the version found."""

    found = ".".join(map(str, version))

    assert f"this is {found}:" in python_problem(version)


def test_unsupported_python_is_one_line():
    """The command exits with code 1 and one line on stderr."""

    script = (
        "import runpy, sys; sys.version_info = (3, 10, 2)\n"
        "runpy.run_module('scripts.setup', run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(r"setup: Python 3.11, .* this is 3\.10\.2: .*\n", result.stderr)


def test_old_python_can_parse_the_check():
    """Code that runs before the check is valid for Python 3.6."""

    for module in ("__init__", "__main__", "python_version"):
        source = (REPOSITORY / "scripts" / "setup" / f"{module}.py").read_text()
        ast.parse(source, feature_version=(3, 6))
