"""The command line."""

import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

__all__ = ["main"]

EXTENSION = "openai_frontend.triton._core"
NOT_BUILT = 1
INTERRUPTED = 130  # a shell's exit code for SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code.

    Handles Ctrl-C during imports, which take a second; a running server handles signals itself.
    """
    try:
        from openai_frontend.cli import command

        return command.main(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name != EXTENSION:
            raise
        sys.stderr.write(f"openai-frontend: {_no_extension()}\n")
        return NOT_BUILT


def _no_extension() -> str:
    """Names the extension that was found instead, for example one for another Python version."""
    folder = Path(__file__).parents[1] / "triton"
    found = ", ".join(sorted(path.name for path in folder.glob("_core*.so"))) or "no build of it"
    return (
        f"{EXTENSION} is not built for this Python: {folder} has {found},"
        f" _core{EXTENSION_SUFFIXES[0]} is needed. Install the wheel for Python"
        f" {sys.version_info.major}.{sys.version_info.minor} with pip, or run make setup in the"
        " sources"
    )
