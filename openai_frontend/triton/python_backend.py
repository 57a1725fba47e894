"""Triton's Python backend from the wheel `nvidia-pytriton`, in the environment of the gateway.

The wheel has the backend and, for each minor version of Python, a stub: the process that a model
runs in. NVIDIA's images have a Python backend of their own, which nothing here touches.
"""

import ctypes
import hashlib
import importlib.metadata
import os
import shlex
import shutil
import site
import sys
from pathlib import Path

BACKEND = "python"
STUB = "triton_python_backend_stub"  # the name that the backend starts, in its own folder
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

# The stubs of nvidia-pytriton 0.7.0 for Python 3.11 to 3.13, by SHA-256. They were compiled for
# the arrays of NumPy 1 and read an item's size, which NumPy 2 keeps eight bytes further on, as 0.
_NUMPY_1_STUBS = {
    "a302adf6396501ac139da06f965aea1bf61929c99bf799f6b8797e071cd268f4",
    "41a7758c6f44520b846e90a5bf8b063f99aee01698c3e32113ce352fe8369921",
    "7b701b4b4bc01ca7af0350eaffa4f2aed92f02b465b3494a265059e4d3ca6cf8",
}
# Their instructions that read it, from offset 0x20 of the dtype in rax, and the same for NumPy 2
_ITEM_SIZE_READS = {
    bytes.fromhex("48634020"): bytes.fromhex("48634028"),  # movslq 0x20(%rax),%rax
    bytes.fromhex("488b068b4020"): bytes.fromhex("488b068b4028"),  # mov 0x20(%rax),%eax
}

# An execution environment of the model's own has put its libraries first: it stays as it is.
_WRAPPER = """\
#!/bin/sh
if [ "${{LD_LIBRARY_PATH-}}" != {library_path} ]; then
    for numpy in "${{LD_LIBRARY_PATH%%:*}}"/python{version}/site-packages/numpy-1.*; do
        if [ -e "$numpy" ]; then exec {numpy_1_stub} "$@"; fi
    done
    exec {numpy_2_stub} "$@"
fi
export LD_LIBRARY_PATH={libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
export PATH={binaries}:"$PATH"
exec {stub} "$@"
"""


class PythonBackendUnavailable(RuntimeError):
    """The Python backend cannot run here; the message is one line and says why."""


def install(folder: Path, site_packages: Path) -> None:
    """Fill `folder`, Triton's folder of the backend, from the wheel in `site_packages`.

    Models then load in the environment of this interpreter, whatever the environment variables
    say. Raises `PythonBackendUnavailable` where they cannot.
    """
    wheel = site_packages / "pytriton" / "tritonserver"
    installed = wheel / "python_backend_stubs" / VERSION / STUB
    if not installed.is_file() or sys.abiflags:
        raise PythonBackendUnavailable(
            f"nvidia-pytriton has no Python backend for Python {VERSION}{sys.abiflags}"
        )
    library = shared_library()
    folder.mkdir()
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        # Copied: for backends that are programs in Python the core follows no link out of here.
        shutil.copy(wheel / "backends" / BACKEND / name, folder / name)
    # Backend and stub look for Triton's libraries from where they lie: four folders up.
    (folder / "nvidia_pytriton.libs").symlink_to(site_packages / "nvidia_pytriton.libs")
    libraries = folder / "lib"
    libraries.mkdir()
    (libraries / library.name).symlink_to(library)
    stub = _for_numpy_2(installed, folder / "pytriton" / "tritonserver" / "stubs" / VERSION)
    _write_wrapper(folder, libraries, installed, stub)
    _end_blas_threads()


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
        f"Triton's Python backend needs {name}, and {sys.executable} was built without it: use a "
        f"Python that has it (Debian and Ubuntu: apt-get install libpython{VERSION}; pyenv: "
        "PYTHON_CONFIGURE_OPTS=--enable-shared)"
    )


def _mapped_libraries(name: str) -> set[Path]:
    """What this process has loaded: an interpreter that is linked to libpython has it there."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = {
        Path(line.split(maxsplit=5)[5]) for line in lines if line.count(" ") > 5 and "/" in line
    }
    return {path for path in mapped if name in path.name and ".so" in path.suffixes}


def _library_folders() -> list[Path]:
    base = Path(sys.base_prefix) / "lib"
    multiarch = getattr(sys.implementation, "_multiarch", "")  # Debian's folder for a processor
    return [base, base / multiarch]


def _end_blas_threads() -> None:
    """End the threads of OpenBLAS, which NumPy brings; the next large product starts them anew.

    Before a fork it ends them itself, and waits for ever where two threads fork at once, as the
    core's do when it starts the stubs of two models.
    """
    for path in _mapped_libraries("openblas"):
        end = getattr(ctypes.CDLL(str(path)), "blas_thread_shutdown_", None)
        if end is not None:
            end()


def _for_numpy_2(installed: Path, folder: Path) -> Path:
    """Write a copy of a stub that was compiled for NumPy 1 and reads arrays of NumPy 2."""
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


def _write_wrapper(folder: Path, libraries: Path, numpy_1_stub: Path, numpy_2_stub: Path) -> None:
    numpy_1 = importlib.metadata.version("numpy").startswith("1.")
    values = {
        "library_path": os.environ.get("LD_LIBRARY_PATH", ""),
        "libraries": libraries,
        "binaries": _environment(folder / "environment"),
        "version": VERSION,
        "numpy_1_stub": numpy_1_stub,
        "numpy_2_stub": numpy_2_stub,
        "stub": numpy_1_stub if numpy_1 else numpy_2_stub,
    }
    wrapper = folder / STUB
    wrapper.write_text(
        _WRAPPER.format(**{name: shlex.quote(str(value)) for name, value in values.items()})
    )
    wrapper.chmod(0o700)
    if not os.access(wrapper, os.X_OK):  # a temporary folder mounted noexec
        raise PythonBackendUnavailable(
            f"Triton's Python backend cannot be started from {folder.parent}, where no programs "
            "may run: set TMPDIR to a folder where they may"
        )


def _environment(folder: Path) -> Path:
    """Make an environment of the base interpreter whose start-up file enters this one, and return
    the folder of its executable; the stub's interpreter is the first python3 on PATH.
    """
    base = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
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
