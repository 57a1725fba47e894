"""Checks the machine before anything is installed, and reports what is missing on one line."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

OLDEST_GLIBC = (2, 35)
CXX20_PROBE = "#include <concepts>\n#include <span>\nstatic_assert(__cplusplus >= 202002L);\n"


class Machine(NamedTuple):
    """The facts that the checks need, read once."""

    system: str
    processor: str
    glibc: tuple[int, ...] | None
    make: str | None
    compiler: str | None
    compiles_cxx20: bool
    python_header: Path
    has_python_header: bool
    has_ensurepip: bool
    root: Path
    free_bytes: int


Check = Callable[[Machine], str | None]


def read_machine(root: Path) -> Machine:
    compiler = find_compiler()
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    return Machine(
        system=platform.system(),
        processor=platform.machine(),
        glibc=glibc_version(),
        make=shutil.which("make"),
        compiler=compiler,
        compiles_cxx20=bool(compiler) and compiles(str(compiler), CXX20_PROBE),
        python_header=header,
        has_python_header=header.is_file(),
        has_ensurepip=importlib.util.find_spec("ensurepip") is not None,
        root=root,
        free_bytes=shutil.disk_usage(root).free,
    )


def first_problem(
    machine: Machine, needed_bytes: int, checks: Sequence[Check] | None = None
) -> str | None:
    """The first problem on one line, or None."""
    found = (check(machine) for check in (CHECKS if checks is None else checks))
    return next((line for line in found if line), disk_problem(machine, needed_bytes))


def platform_problem(machine: Machine) -> str | None:
    if (machine.system, machine.processor) == ("Linux", "x86_64"):
        return None
    found = f"{machine.system} on {machine.processor}"
    return f"Linux on x86_64 is needed, this is {found}: Triton's library exists for no other here"


def glibc_problem(machine: Machine) -> str | None:
    if machine.glibc is not None and machine.glibc >= OLDEST_GLIBC:
        return None
    found = "another C library" if machine.glibc is None else dotted(machine.glibc)
    needed = f"glibc {dotted(OLDEST_GLIBC)} or newer"
    return f"{needed} is needed, this is {found}: use Ubuntu 22.04, Debian 12 or newer"


def make_problem(machine: Machine) -> str | None:
    return None if machine.make else "make is not installed: apt-get install make"


def compiler_problem(machine: Machine) -> str | None:
    if machine.compiler is None:
        return "no C++ compiler (g++ or clang++) was found: apt-get install g++"
    if not machine.compiles_cxx20:
        return (
            f"{machine.compiler} does not compile C++20: g++ 11 or clang++ 14 is needed (set CXX)"
        )
    return None


def header_problem(machine: Machine) -> str | None:
    if machine.has_python_header:
        return None
    return f"{machine.python_header} does not exist: apt-get install python3-dev"


def ensurepip_problem(machine: Machine) -> str | None:
    if machine.has_ensurepip:
        return None
    return "this Python cannot make environments with pip: apt-get install python3-venv"


def disk_problem(machine: Machine, needed_bytes: int) -> str | None:
    if machine.free_bytes >= needed_bytes:
        return None
    needed, free = gigabytes(needed_bytes), gigabytes(machine.free_bytes)
    return f"{needed} of free disk is needed at {machine.root}, {free} is there"


CHECKS: list[Check] = [
    platform_problem,
    glibc_problem,
    make_problem,
    compiler_problem,
    header_problem,
    ensurepip_problem,
]
# Developers' tools load neither Triton's library nor the extension.
TOOL_CHECKS: list[Check] = [ensurepip_problem]


def glibc_version() -> tuple[int, ...] | None:
    name, version = platform.libc_ver()
    return tuple(int(part) for part in version.split(".")) if name == "glibc" else None


def find_compiler() -> str | None:
    """The compiler that CMake will choose."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    return next((name for name in names if name and shutil.which(name.split()[0])), None)


def compiles(compiler: str, source: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.cc")
        probe.write_text(source)
        command = [*compiler.split(), "-std=c++20", "-fsyntax-only", str(probe)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
