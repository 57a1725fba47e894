"""Assembles the core's backend directory: the in-process backend and the installed ones."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openai_frontend.runtime.triton_interface import BACKENDS, MISSING_BACKEND, PYTHON_BACKEND
from openai_frontend.triton import _core, inprocess, library, python_backend


@dataclass(frozen=True, slots=True)
class BackendDirectory:
    """A temporary folder of backends, and the reasons why some are unavailable."""

    folder: Path
    installed: Path  # of which the folder has links
    unavailable: Mapping[str, str]
    recorded: int | None = None  # the descriptor of `python_backend.install`

    def reason(self, reason: str) -> str:
        """Return why a model failed. The core only reports that the backend is missing, and not
        what to do.
        """
        found = MISSING_BACKEND.search(reason)
        if found is None:
            return reason
        unavailable = self.unavailable.get(found[1])
        return unavailable or f"{reason.rstrip('.')}: {missing(found[1], self.installed)}"

    def remove(self) -> None:
        """Remove the folder. Call it once."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.recorded is not None:
            os.close(self.recorded)


# Backend -> what to do if it is not installed
_CURES = {
    "vllm": 'set backend: "inprocess" in config.pbtxt to run the model in this process '
    "(docs/migrating.md)",
    "tensorrtllm": "NVIDIA removed it in July 2026: use an older image, or a model of "
    "TensorRT-LLM's LLM API (docs/tensorrt-llm.md)",
}


def missing(backend: str, installed: Path) -> str:
    """Why models of the backend cannot be loaded, and what to do."""
    cure = _CURES.get(backend, "install it there, or set backend_directory to its folder")
    return f"backend '{backend}' is not installed in {installed}; {cure}"


def assemble(
    installed: Path | None, core_library: Path, repositories: Sequence[Path] = ()
) -> BackendDirectory:
    """Create a directory with the in-process backend and links to the installed backends.

    The in-process backend is a link to the extension module: the loader recognizes the loaded file
    by its inode, so module and backend share their state.
    """
    folder = Path(tempfile.mkdtemp(prefix="openai-frontend-backends-"))
    own = folder / inprocess.BACKEND
    own.mkdir()
    (own / f"libtriton_{inprocess.BACKEND}.so").symlink_to(_core.__file__)
    server = library.server_folder(core_library)
    source = installed or server / BACKENDS
    found = {each.name: each for each in source.iterdir()} if source.is_dir() else {}
    found.pop(inprocess.BACKEND, None)
    with_stubs = python_backend.has_stubs(server) and (
        installed is None or PYTHON_BACKEND not in found
    )
    if with_stubs:
        found.pop(PYTHON_BACKEND, None)
    for name, backend in found.items():
        (folder / name).symlink_to(backend)
    made = BackendDirectory(folder, source, {})
    return _with_python(made, server, repositories) if with_stubs else made


def _with_python(
    directory: BackendDirectory, server: Path, repositories: Sequence[Path]
) -> BackendDirectory:
    """Add the Python backend of the core's own server folder: it works only with that core."""
    try:
        recorded = python_backend.install(directory.folder / PYTHON_BACKEND, server, repositories)
    except python_backend.PythonBackendUnavailable as error:
        return replace(directory, unavailable={PYTHON_BACKEND: str(error)})
    return replace(directory, recorded=recorded)
