"""Models of backends in C, whose sources are in this folder."""

import subprocess
from pathlib import Path

from openai_frontend.triton import library

_OPTIONS = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-z,nodelete")


def write(repository: Path, name: str, config: str) -> Path:
    """A model of `NAME_backend.c`; return the backend's library, which stays loaded."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'backend: "{name}"\n{config}')
    real = library.find()
    built = version / f"libtriton_{name}.so"
    source = Path(__file__).with_name(f"{name}_backend.c")
    link = [f"-L{real.parent}", f"-l:{real.name}"]
    command: list[str | Path] = ["gcc", *_OPTIONS, "-o", built, source, *link]
    subprocess.run(command, check=True)
    return built
