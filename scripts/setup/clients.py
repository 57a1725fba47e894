"""The environments of the clients that the tests drive; no part of what serves is in them."""

import os
import sys
from pathlib import Path

from scripts.setup.debian import fetch_library
from scripts.setup.install import (
    BASE_PYTHON,
    REQUIREMENTS,
    STAMPS,
    VENV,
    Step,
    check,
    compile_bytecode,
    pip,
    site_packages,
)
from scripts.setup.progress import Progress
from scripts.setup.stamps import Stamp, digest

CLIENTS = VENV / "clients"
LOCKS = REQUIREMENTS / "clients"

# As measured, and half as much again for what pip unpacks and keeps while it works.
CLIENT_BYTES = 1_800_000_000

# What a client's programs link to and no package of PyPI has: Debian's package, and its library.
LIBRARIES = {"genai-perf": ("libb64-0d", "libb64.so.0d")}


def steps() -> list[Step]:
    """One environment for each lock of `requirements/clients`."""
    return [client_step(lock) for lock in sorted(LOCKS.glob("*.txt"))]


def client_step(lock: Path) -> Step:
    wanted = digest([lock], sys.version, BASE_PYTHON, *LIBRARIES.get(lock.stem, ()))
    return Step(
        f"client {lock.stem}",
        CLIENT_BYTES,
        Stamp(STAMPS / "clients" / lock.stem, wanted),
        lambda progress: make_client(progress, lock),
    )


def make_client(progress: Progress, lock: Path) -> None:
    """An environment with what its lock names; pip is that of `.venv`."""
    venv = CLIENTS / lock.stem
    python = venv / "bin" / "python"
    progress.run([BASE_PYTHON, "-m", "venv", "--clear", "--without-pip", venv])
    if lock.stem in LIBRARIES:
        fetch_library(progress, *LIBRARIES[lock.stem], venv / "lib")
    options = ["--no-deps", "--no-compile", f"--requirement={lock}"]
    progress.run([*pip("install", python), *options])
    compile_bytecode(progress, site_packages(venv))
    check(python)


def library_path(venv: Path) -> str:
    """The LD_LIBRARY_PATH of a client's programs."""
    cuda = site_packages(venv) / "nvidia" / "cuda_runtime" / "lib"
    return os.pathsep.join(str(path) for path in (venv / "lib", cuda))
