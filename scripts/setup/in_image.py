"""Installs the gateway beside what NVIDIA's images have: their vLLM, torch and core stay.

`python3 -m scripts.setup.in_image [--vllm] FOLDER` makes an environment in FOLDER.
"""

import argparse
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

# The gateway must not bring its own: they are built for the image.
KEPT = ("torch", "vllm", "tensorrt-llm")
EXTRAS = ("grpc",)  # in every image


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts.setup.in_image", description=__doc__)
    parser.add_argument("--vllm", action="store_true", help="the image must have a vLLM in range")
    parser.add_argument("folder", type=Path, help="where to make the environment")
    parsed = parser.parse_args(arguments)
    if parsed.vllm and (problem := vllm_problem()):
        sys.stderr.write(f"setup: {problem}\n")
        return 1
    clashes = install(parsed.folder, beside_vllm() if parsed.vllm else [])
    if clashes:
        sys.stderr.write("\n".join(["setup: the gateway and the image clash:", *clashes]) + "\n")
    return 1 if clashes else 0


def vllm_problem() -> str | None:
    """One line if this Python has no vLLM in the range of pyproject.toml, else None."""
    from packaging.specifiers import SpecifierSet  # vLLM brings it

    [wanted] = [
        SpecifierSet(text.removeprefix("vllm")) for text in extra_requirements() if is_vllm(text)
    ]
    found = version_of("vllm")
    if found is None:
        return f"this image has no vLLM; vllm{wanted} is needed: choose another base image"
    # NVIDIA's local version (+nv26.7) marks their build of the same release.
    if wanted.contains(found.partition("+")[0], prereleases=True):
        return None
    return f"this image has vLLM {found}; vllm{wanted} is needed: choose another release of it"


def extra_requirements(name: str = "vllm") -> list[str]:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    requirements: list[str] = project["optional-dependencies"][name]
    return requirements


def is_vllm(requirement: str) -> bool:
    return re.match(r"[\w.-]+", requirement)[0] == "vllm"  # type: ignore[index]


def beside_vllm() -> list[str]:
    """The extra without vLLM: with it, pip would ask for the torch that PyPI's vLLM names."""
    return [text for text in extra_requirements() if not is_vllm(text)]


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def install(folder: Path, also: list[str]) -> list[str]:
    """Make the environment. Returns what `pip check` reports since, and did not report before."""
    python = str(folder / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", folder], check=True)
    before = reported(python)
    pip = [python, "-m", "pip"]
    with tempfile.TemporaryDirectory() as made:
        limits = Path(made, "limits.txt")
        limits.write_text("\n".join(constraints()))
        build = ["wheel", "--no-cache-dir", "--no-deps", f"--wheel-dir={made}", "."]
        subprocess.run([*pip, *build], check=True)
        [wheel] = Path(made).glob("*.whl")
        options = ["--no-cache-dir", f"--constraint={limits}"]
        gateway = f"{wheel}[{','.join(EXTRAS)}]"
        subprocess.run([*pip, "install", *options, gateway, *also], check=True)
    return [line for line in reported(python) if line not in before]


def kept() -> dict[str, str]:
    """The image's packages of `KEPT`, and their versions."""
    found = {name: version_of(name) for name in KEPT}
    return {name: version for name, version in found.items() if version is not None}


def constraints() -> list[str]:
    """The kept packages at their versions, and what they require of others: where pip must replace
    a package of the image, it chooses a version that suits both.
    """
    from packaging.requirements import Requirement  # in every image: transformers brings it

    found = [f"{name}=={version}" for name, version in kept().items()]
    for text in (text for name in kept() for text in importlib.metadata.requires(name) or ()):
        requirement = Requirement(text)
        holds = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if holds and requirement.specifier and requirement.name.lower() not in KEPT:
            found.append(f"{requirement.name}{requirement.specifier}")
    return found


def reported(python: str) -> list[str]:
    """The lines of `pip check`; empty if all requirements are met."""
    checked = subprocess.run(
        [python, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    return checked.stdout.splitlines() if checked.returncode else []


if __name__ == "__main__":
    sys.exit(main())
