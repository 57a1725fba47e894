"""`install-core`: installs the wheel that contains Triton's library.

An extra of the package cannot name it: its metadata require NumPy 1, which none of its parts that
the gateway uses needs.
"""

import importlib
import importlib.metadata
import shlex
import subprocess
import sys
from pathlib import Path

from openai_frontend.runtime.triton_interface import WHEEL


def run() -> str | None:
    """Why the library is not installed now, on one line; None if it is."""
    if (path := _installed()) is not None:
        return f"Triton's library is installed already: {path}"
    options = ["install", "--no-deps", WHEEL]
    if not _has_pip():
        with_uv = ["uv", "pip", "install", "--python", sys.executable, *options[1:]]
        return f"this environment has no pip; run: {shlex.join(with_uv)}"
    command = [sys.executable, "-m", "pip", *options]
    sys.stdout.write(f"{shlex.join(command)}\n")
    sys.stdout.flush()
    code = subprocess.run(command, check=False).returncode  # noqa: S603  no part is a user's
    if code:
        return f"pip ended with exit code {code}; without its wheel, set triton_library (make core)"
    if (path := _installed()) is None:
        return f"pip has installed {WHEEL}, but not where this Python finds its library"
    sys.stdout.write(f"Triton's library is {path}\n")
    return None


def _has_pip() -> bool:
    # find_spec("pip") would run setuptools' hook for pip, which changes this process
    return any(importlib.metadata.distributions(name="pip"))


def _installed() -> Path | None:
    from openai_frontend.triton import LibraryNotFound, library

    importlib.invalidate_caches()
    try:
        return library.find()
    except LibraryNotFound:
        return None
