"""Installs the Python backend of the wheel or of `make core`, in the gateway's environment.

Both contain the backend and, per minor version of Python, a stub: the process that a model runs in.
The Python backend of NVIDIA's images is used as it is.
"""

import ctypes
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import site
import sys
from collections.abc import Sequence
from pathlib import Path

from openai_frontend.runtime.triton_interface import (
    BACKENDS,
    PYTHON_BACKEND,
    PYTHON_BACKEND_FILES,
    STUB,
    STUBS,
    WHEEL_FOLDER,
)

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

# SHA-256 of the stubs in nvidia-pytriton 0.7.0 for Python 3.11 to 3.13. They were compiled for
# NumPy 1; NumPy 2 stores an item's size eight bytes further on, so they read it as 0.
_NUMPY_1_STUBS = {
    "a302adf6396501ac139da06f965aea1bf61929c99bf799f6b8797e071cd268f4",
    "41a7758c6f44520b846e90a5bf8b063f99aee01698c3e32113ce352fe8369921",
    "7b701b4b4bc01ca7af0350eaffa4f2aed92f02b465b3494a265059e4d3ca6cf8",
}
# The instructions that read it at offset 0x20 of the dtype in rax, and their NumPy 2 versions
_ITEM_SIZE_READS = {
    bytes.fromhex("48634020"): bytes.fromhex("48634028"),  # movslq 0x20(%rax),%rax
    bytes.fromhex("488b068b4020"): bytes.fromhex("488b068b4028"),  # mov 0x20(%rax),%eax
}

# The wheel's backend starts a stub with a shell command and quotes nothing in it. With any of these
# characters in a path the stub gets other arguments and aborts, and the core waits for it forever.
_SPLITS_COMMAND = re.compile(r"[\s|&;<>()$`\\\"'*?\[]")

# The loader's variables are those of the recorded environment already for the interpreter
_WRAPPER = """\
#!/bin/sh
library_path="${{LD_LIBRARY_PATH-}}"
{loader_variables}
exec {python} -IS {launcher} {launch} "$library_path" "$@"
"""
_LAUNCH = "launch.json"  # in the backend's folder, a link to memory of this process
_LOADER_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD")


class PythonBackendUnavailable(RuntimeError):
    """The Python backend cannot run here. The one-line message says why."""


def has_stubs(server: Path) -> bool:
    """Whether `install` applies to this folder, like /opt/tritonserver. Not in NVIDIA's images."""
    return (server / STUBS).is_dir()


def install(folder: Path, server: Path, repositories: Sequence[Path] = ()) -> int:
    """Fill `folder`, Triton's folder of the backend, from `server`, which `has_stubs`.

    Models of the `repositories` then run in the environment of this interpreter with the variables
    that this process has now, whatever changes them later. Returns a descriptor of the recorded
    variables, to close once no stub starts any more. Raises `PythonBackendUnavailable` if models
    cannot run.
    """
    installed = server / STUBS / VERSION / STUB
    if not installed.is_file() or sys.abiflags:
        raise PythonBackendUnavailable(
            f"{server / STUBS} has no stub of Triton's Python backend for Python "
            f"{VERSION}{sys.abiflags}"
        )
    library = shared_library()
    wheel_libraries = server.parent.parent / WHEEL_FOLDER
    if wheel_libraries.is_dir():
        _check_paths([folder, *repositories])
    folder.mkdir()
    for name in PYTHON_BACKEND_FILES:
        # Copied, because the core does not follow links out of the folder for Python-based
        # backends.
        shutil.copy(server / BACKENDS / PYTHON_BACKEND / name, folder / name)
    # The wheel's backend and stub search Triton's libraries relative to themselves, four folders
    # up. Those of `make core` have none: the loader finds the system's.
    if wheel_libraries.is_dir():
        (folder / WHEEL_FOLDER).symlink_to(wheel_libraries)
    libraries = folder / "lib"
    libraries.mkdir()
    (libraries / library.name).symlink_to(library)
    stub = _for_numpy_2(installed, folder / "pytriton" / "tritonserver" / "stubs" / VERSION)
    _write_wrapper(folder)
    _end_blas_threads()
    return _record(folder, libraries, installed, stub)


def _check_paths(paths: Sequence[Path]) -> None:
    for path in paths:
        if (found := _SPLITS_COMMAND.search(str(path))) is not None:
            raise PythonBackendUnavailable(
                f"the Python backend of nvidia-pytriton cannot use the path '{path}' because of "
                f"its {found[0]!r}: rename the folder, or use a newer core (make core)"
            )


def shared_library() -> Path:
    """Return libpython of this interpreter, which the stub is linked to.

    Raises `PythonBackendUnavailable` if there is none.
    """
    name = f"libpython{VERSION}.so.1.0"
    for path in (
        *_mapped_libraries("libpython"),
        *(folder / name for folder in _library_folders()),
    ):
        if path.name == name and path.is_file():
            return path
    raise PythonBackendUnavailable(
        f"Triton's Python backend needs {name}, but {sys.executable} was built without it: use a "
        f"Python with it (Debian and Ubuntu: apt-get install libpython{VERSION}; pyenv: "
        "PYTHON_CONFIGURE_OPTS=--enable-shared)"
    )


def _mapped_libraries(name: str) -> set[Path]:
    """Libraries mapped into this process, e.g. libpython if the interpreter is linked to it."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = {
        Path(line.split(maxsplit=5)[5]) for line in lines if line.count(" ") > 5 and "/" in line
    }
    return {path for path in mapped if name in path.name and ".so" in path.suffixes}


def _library_folders() -> list[Path]:
    base = Path(sys.base_prefix) / "lib"
    multiarch = getattr(sys.implementation, "_multiarch", "")  # Debian's multiarch folder
    return [base, base / multiarch]


def _end_blas_threads() -> None:
    """Stop the threads of NumPy's OpenBLAS; the next large product restarts them.

    OpenBLAS stops them before a fork and deadlocks if two threads fork at once, as the core does
    when it starts the stubs of two models.
    """
    for path in _mapped_libraries("openblas"):
        end = getattr(ctypes.CDLL(str(path)), "blas_thread_shutdown_", None)
        if end is not None:
            end()


def _for_numpy_2(installed: Path, folder: Path) -> Path:
    """Write a copy of a NumPy 1 stub, patched to read NumPy 2 arrays."""
    program = installed.read_bytes()
    if hashlib.sha256(program).hexdigest() not in _NUMPY_1_STUBS:
        return installed
    for read, read_2 in _ITEM_SIZE_READS.items():
        program = program.replace(read, read_2)
    folder.mkdir(parents=True)
    stub = folder / STUB
    stub.write_bytes(program)
    stub.chmod(0o700)
    return stub


def _record(folder: Path, libraries: Path, numpy_1_stub: Path, numpy_2_stub: Path) -> int:
    """Record the environment and paths for `stub_launcher`.

    In memory: the variables may contain secrets, which must not outlive the process on a disk.
    """
    numpy_1 = importlib.metadata.version("numpy").startswith("1.")
    launch = {
        "environment": {
            name.decode("latin-1"): value.decode("latin-1") for name, value in os.environb.items()
        },
        "prefix": sys.prefix,
        "version": VERSION,
        "libraries": str(libraries),
        "binaries": str(_environment(folder / "environment")),
        "numpy_1_stub": str(numpy_1_stub),
        "numpy_2_stub": str(numpy_2_stub),
        "stub": str(numpy_1_stub if numpy_1 else numpy_2_stub),
    }
    descriptor = os.memfd_create("stub-launch")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps(launch).encode())
    (folder / _LAUNCH).symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
    return descriptor


def _write_wrapper(folder: Path) -> None:
    recorded = {name: os.environ.get(name) for name in _LOADER_VARIABLES}
    lines = [
        f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}"
        for name, value in recorded.items()
    ]
    values = {
        "python": _base_interpreter(),
        "launcher": Path(__file__).with_name("stub_launcher.py"),
        "launch": folder / _LAUNCH,
    }
    wrapper = folder / STUB
    wrapper.write_text(
        _WRAPPER.format(
            loader_variables="\n".join(lines),
            **{name: shlex.quote(str(value)) for name, value in values.items()},
        )
    )
    wrapper.chmod(0o700)
    if not os.access(wrapper, os.X_OK):  # mounted noexec
        raise PythonBackendUnavailable(
            f"Triton's Python backend cannot start from {folder.parent}, which is mounted noexec: "
            "set TMPDIR to a folder that allows execution"
        )


def _environment(folder: Path) -> Path:
    """Create a virtual environment of the base interpreter whose start-up file enters this one.

    Returns the folder of its executable: the stub's interpreter is the first python3 on PATH.
    """
    base = _base_interpreter()
    binaries = folder / "bin"
    packages = folder / "lib" / f"python{VERSION}" / "site-packages"
    binaries.mkdir(parents=True)
    packages.mkdir(parents=True)
    with_base_packages = sys.base_prefix in site.PREFIXES
    (folder / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = {with_base_packages}\n"
    )
    (binaries / "python3").symlink_to(base)
    startup = Path(__file__).with_name("stub_startup.py")
    (packages / "openai_frontend_stub_startup.py").symlink_to(startup)
    user_site = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    arguments = (sys.executable, sys.prefix, user_site, os.environ.get("LD_LIBRARY_PATH"))
    (packages / "startup.pth").write_text(
        f"import openai_frontend_stub_startup as startup; startup.enter(*{arguments!r})\n"
    )
    return binaries


def _base_interpreter() -> Path:
    return Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
