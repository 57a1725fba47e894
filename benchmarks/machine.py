"""What the figures hold for: machine and versions, by type and never by name."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

from openai_frontend import __version__
from openai_frontend.triton import library

_PACKAGES = (
    "uvicorn", "uvloop", "httptools", "fastapi", "starlette", "pydantic", "orjson", "tokenizers",
    "transformers",
)  # fmt: skip


def parse_cpu_model(cpuinfo: str) -> str:
    """The first processor's name in /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()


def describe() -> dict[str, str]:
    """Processor and system."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return {
        "cpu": parse_cpu_model(cpuinfo),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
    }


def commit() -> str:
    """Of the sources that were measured; "+" where they differ from it, empty outside of git."""
    revision = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return f"{revision}+" if revision and changed else revision


def _git(*arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    folder = Path(__file__).parent
    done = subprocess.run(
        [git, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def versions() -> dict[str, str]:
    """Of all that a request passes through."""
    api = library.load(library.find()).api_version
    return {
        "openai-frontend": __version__,
        "python": platform.python_version(),
        "triton C API": ".".join(map(str, api)),
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }
