"""Compiles the C floor (`floor.c`) with the machine's own compiler."""

import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("floor.c")
_OPTIONS = ("-O2", "-Wall", "-Wextra", "-Werror")


class NoCompiler(Exception):
    """There is no C compiler; the message says so in a sentence."""


def build(folder: Path) -> Path:
    """The program, below a folder of the caller's."""
    name = os.environ.get("CC", "cc")
    compiler = shutil.which(name)
    if compiler is None:
        raise NoCompiler(f"no C compiler: {name!r} is not found; CC names another")
    program = folder / "floor"
    subprocess.run([compiler, *_OPTIONS, "-o", str(program), str(_SOURCE)], check=True)
    return program
