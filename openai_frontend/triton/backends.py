"""Assembles the core's backend directory: the in-process backend and the installed ones."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openai_frontend.triton import _core, inprocess, library, python_backend


@dataclass(frozen=True, slots=True)
class BackendDirectory:
    """A temporary folder of backends, and the reasons why some are unavailable."""

    folder: Path
    unavailable: Mapping[str, str]

    def reason(self, reason: str) -> str:
        """Return why a model failed: the core only reports that the backend is missing."""
        for name, why in self.unavailable.items():
            if f"for backend '{name}'" in reason:
                return why
        return reason


def assemble(installed: Path | None, core_library: Path) -> BackendDirectory:
    """Create a directory with the in-process backend and links to the installed backends.

    The in-process backend is a link to the extension module: the loader recognizes the loaded file
    by its inode, so module and backend share their state.
    """
    folder = Path(tempfile.mkdtemp(prefix="openai-frontend-backends-"))
    own = folder / inprocess.BACKEND
    own.mkdir()
    (own / f"libtriton_{inprocess.BACKEND}.so").symlink_to(_core.__file__)
    source = installed or library.IMAGE_BACKENDS
    for backend in sorted(source.iterdir()) if source.is_dir() else ():
        if backend.name != inprocess.BACKEND:
            (folder / backend.name).symlink_to(backend)
    return BackendDirectory(folder, _add_python(folder, core_library))


def _add_python(folder: Path, core_library: Path) -> dict[str, str]:
    """Add the wheel's Python backend, which works only with the wheel's core."""
    python = folder / python_backend.BACKEND
    wheel = core_library.parent
    if wheel.name != library.WHEEL_FOLDER or python.exists():
        return {}
    try:
        python_backend.install(python, wheel.parent)
    except python_backend.PythonBackendUnavailable as error:
        return {python_backend.BACKEND: str(error)}
    return {}
