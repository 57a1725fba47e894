"""The command line."""

import atexit
import ctypes
import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NoReturn

__all__ = ["main", "run"]

EXTENSION = "openai_frontend.triton._core"
NOT_BUILT = 1
INTERRUPTED = 130  # a shell's exit code for SIGINT
# Extensions that fail while the interpreter frees its modules, which only their own code could
# change. torch's compiler of kernels reports each of its types as leaked; a thread of obstore that
# still ends a request aborts the process.
_UNFREED = ("triton._C.libtriton", "obstore")


def run() -> NoReturn:
    """The program: ends the process with the exit code."""
    code = main()
    if any(name in sys.modules for name in _UNFREED):
        atexit._run_exitfuncs()  # such as multiprocessing's, which removes shared memory
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if EXTENSION in sys.modules:
        _skip_destructors()
    sys.exit(code)


def _skip_destructors() -> None:
    """The core's library would wait for its thread that samples metrics, which sleeps for half of
    `metrics-interval-ms`. `_exit` runs before its destructors, after the interpreter has ended.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code.

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
