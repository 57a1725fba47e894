"""Finds and loads libtritonserver: from the setting, NVIDIA's images or nvidia-pytriton.

The library is opened by path and its functions are resolved by name. So one build of the extension
works with NVIDIA's images (/opt/tritonserver) and with the wheel, whose file name contains a hash.
"""

import logging
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from openai_frontend.runtime.triton_interface import (
    IMAGE_LIBRARY,
    LIBRARY_PATTERN,
    WHEEL_FOLDER,
    WHEEL_SERVER,
)
from openai_frontend.triton import _core

logger = logging.getLogger(__name__)


class LibraryNotFound(RuntimeError):
    """No usable libtritonserver. The one-line message says where it was searched."""


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded library: its path and the version of its C API."""

    path: Path
    api_version: tuple[int, int]


def find(setting: Path | None = None) -> Path:
    """Return the path of libtritonserver.

    Raises `LibraryNotFound` if there is none, or if the setting names a missing file.
    """
    if setting is not None:
        if setting.is_file():
            return setting
        raise LibraryNotFound(f"triton_library: {setting} is not a file")
    if IMAGE_LIBRARY.is_file():
        return IMAGE_LIBRARY
    folder = _wheel_folder()
    for path in sorted(folder.glob(LIBRARY_PATTERN)):
        return path
    raise LibraryNotFound(
        f"libtritonserver not found at {IMAGE_LIBRARY} or in {folder}: install it with "
        "'openai-frontend install-core', or set triton_library (make core builds one)"
    )


def load(path: Path) -> Library:
    """Load the library and its dependencies, and check its version. Idempotent."""
    try:
        version = _core.load_library(str(path), [str(sibling) for sibling in _siblings(path)])
    except RuntimeError as error:
        raise LibraryNotFound(f"cannot use {path}: {error}") from error
    logger.debug("loaded %s, C API %s.%s", path, *version)
    return Library(path, version)


def server_folder(path: Path) -> Path:
    """Return the folder with the backends that belong to this library, like /opt/tritonserver."""
    root = path.absolute().parent.parent
    return root / WHEEL_SERVER if path.parent.name == WHEEL_FOLDER else root


def _wheel_folder() -> Path:
    """Wherever packages are imported from, which need not be this interpreter's own folder."""
    own = Path(sysconfig.get_path("platlib")) / WHEEL_FOLDER
    return next(filter(Path.is_dir, (Path(each) / WHEEL_FOLDER for each in sys.path)), own)


def _siblings(path: Path) -> list[Path]:
    """The dependencies of the wheel's library: it has no usable RPATH. In images the loader finds
    them.
    """
    if path.parent.name != WHEEL_FOLDER:
        return []
    return [
        sibling
        for sibling in sorted(path.parent.glob("*.so*"))
        if sibling != path and not sibling.name.startswith("libpython")
    ]
