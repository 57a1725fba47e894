"""Environments of their own: the clients that the tests drive, and developers' tools. No part of
what serves is in them.
"""

import os
import shutil
import sys
from functools import partial
from pathlib import Path

from scripts.setup.debian import fetch_file, fetch_program
from scripts.setup.install import (
    BASE_PYTHON,
    REQUIREMENTS,
    STAMPS,
    VENV,
    Step,
    check,
    compile_bytecode,
    locked,
    pip,
    python_step,
    site_packages,
)
from scripts.setup.progress import Progress
from scripts.setup.stamps import Stamp, digest

CLIENTS = VENV / "clients"
LOCKS = REQUIREMENTS / "clients"
TOOLS = VENV / "tools"
TOOL_LOCKS = REQUIREMENTS / "tools"

# As measured, and half as much again for what pip unpacks and keeps while it works.
CLIENT_BYTES = 1_800_000_000
TOOL_BYTES = 300_000_000
BROWSER_BYTES = 900_000_000

# What no package of PyPI has, as (Debian's package, its file): a client's programs link to it, or
# it is one. Redis' server and its checker are the same program.
DEBIAN_FILES = {
    "genai-perf": [("libb64-0d", "libb64.so.0d")],
    "routers": [
        ("redis-tools", "redis-check-rdb"),
        ("libjemalloc2", "libjemalloc.so.2"),
        ("liblzf1", "liblzf.so.1"),
        ("libatomic1", "libatomic.so.1"),
    ],
}

# A browser and a font for it, unpacked below its environment.
BROWSER = ("chromium-headless-shell", "fontconfig-config", "fonts-dejavu-core")
CHROMIUM = TOOLS / "browser" / "debian"

# Beside a lock may be a folder of its name with npm's lock. Its packages are installed below
# `node_modules` of the environment, by the npm that the lock has; their scripts do not run.
NPM_FILES = ("package.json", "package-lock.json")

# The gateway runs inside of these, so they see its packages behind their own.
WITH_GATEWAY = {"ray"}

# The gateway sees these beside its own packages, which have what they require: installed without
# their dependencies, of which one is another build of the same library.
WITHIN_GATEWAY = {"nixl"}


def steps() -> list[Step]:
    """One environment for each lock of `requirements/clients`."""
    return [client_step(lock) for lock in sorted(LOCKS.glob("*.txt"))]


def tool_steps(name: str) -> list[Step]:
    """The environment of one lock of `requirements/tools`, and the pip that fills it."""
    lock = TOOL_LOCKS / f"{name}.txt"
    stamp = Stamp(STAMPS / "tools" / name, digest([lock], sys.version, BASE_PYTHON))
    if name == "browser":
        return [python_step(), Step(f"tool {name}", BROWSER_BYTES, stamp, make_browser)]
    make = partial(make_environment, venv=TOOLS / name, lock=lock)
    return [python_step(), Step(f"tool {name}", TOOL_BYTES, stamp, make)]


def make_browser(progress: Progress) -> None:
    """Debian's newest Chromium, and what drives it."""
    make_environment(progress, TOOLS / "browser", TOOL_LOCKS / "browser.txt")
    fetch_program(progress, BROWSER, CHROMIUM)


def client_step(lock: Path) -> Step:
    files = DEBIAN_FILES.get(lock.stem, [])
    locks = [lock, npm_folder(lock)]
    wanted = digest(locks, sys.version, BASE_PYTHON, *(name for each in files for name in each))
    return Step(
        f"client {lock.stem}",
        CLIENT_BYTES,
        Stamp(STAMPS / "clients" / lock.stem, wanted),
        lambda progress: make_client(progress, lock),
    )


def make_client(progress: Progress, lock: Path) -> None:
    """A client's environment and its shared libraries."""
    venv = CLIENTS / lock.stem
    make_environment(progress, venv, lock)
    if npm_folder(lock).is_dir():
        install_npm_packages(progress, venv, npm_folder(lock))
    for package, name in DEBIAN_FILES.get(lock.stem, []):
        fetch_file(progress, package, name, venv / "lib")
    if lock.stem in WITH_GATEWAY:
        add = f"import site; site.addsitedir({str(site_packages().resolve())!r})"
        (site_packages(venv) / "gateway.pth").write_text(f"{add}\n")


def npm_folder(lock: Path) -> Path:
    """npm's lock of an environment, if it has one."""
    return lock.with_suffix("")


def install_npm_packages(progress: Progress, venv: Path, locks: Path) -> None:
    """Install exactly the lock, whose packages have SHA-512 digests."""
    for name in NPM_FILES:
        shutil.copy(locks / name, venv)
    path = os.pathsep.join([str((venv / "bin").resolve()), os.environ["PATH"]])
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    progress.run(command, cwd=venv, env={**os.environ, "PATH": path})


def make_environment(progress: Progress, venv: Path, lock: Path) -> None:
    """Installs a lock into an environment, with the pip of `.venv`."""
    python = venv / "bin" / "python"
    progress.run([BASE_PYTHON, "-m", "venv", "--clear", "--without-pip", venv])
    progress.run([*pip("install", python), *locked([lock])])
    compile_bytecode(progress, site_packages(venv))
    if lock.stem not in WITHIN_GATEWAY:
        check(python)


def library_path(venv: Path) -> str:
    """The LD_LIBRARY_PATH of a client's programs."""
    cuda = site_packages(venv) / "nvidia" / "cuda_runtime" / "lib"
    return os.pathsep.join(str(path) for path in (venv / "lib", cuda))
