"""Finds libtritonserver: the setting, then NVIDIA's images, then the wheel `nvidia-pytriton`.

The library is opened by path and its functions are resolved by name, so one build of the extension
serves NVIDIA's images (/opt/tritonserver) and the wheel, whose file name carries a hash.
"""

import logging
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from openai_frontend.triton import _core

logger = logging.getLogger(__name__)

IMAGE_LIBRARY = Path("/opt/tritonserver/lib/libtritonserver.so")
IMAGE_BACKENDS = Path("/opt/tritonserver/backends")
WHEEL_FOLDER = "nvidia_pytriton.libs"


class LibraryNotFound(RuntimeError):
    """No usable libtritonserver; the message is one line and says where it was looked for."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library that has been loaded: its path and the version of its C API."""

    path: Path
    api_version: tuple[int, int]


def find(setting: Path | None = None) -> Path:
    """Return the path of libtritonserver.

    Raises `LibraryNotFound` where there is none, or where the setting names a file that does not
    exist.
    """
    if setting is not None:
        if setting.is_file():
            return setting
        raise LibraryNotFound(f"triton_library: {setting} is not a file")
    if IMAGE_LIBRARY.is_file():
        return IMAGE_LIBRARY
    folder = _wheel_folder()
    for path in sorted(folder.glob("libtritonserver*.so")):
        return path
    raise LibraryNotFound(
        f"libtritonserver is neither at {IMAGE_LIBRARY} nor in {folder}: install the wheel with "
        "'pip install --no-deps nvidia-pytriton', or set triton_library"
    )


def load(path: Path) -> Library:
    """Load the library with its siblings and check its version. A second call does nothing."""
    try:
        version = _core.load_library(str(path), [str(sibling) for sibling in _siblings(path)])
    except RuntimeError as error:
        raise LibraryNotFound(f"{path} cannot be used: {error}") from error
    logger.debug("loaded %s, C API %s.%s", path, *version)
    return Library(path, version)


def _wheel_folder() -> Path:
    return Path(sysconfig.get_path("platlib")) / WHEEL_FOLDER


def _siblings(path: Path) -> list[Path]:
    """What the wheel's library needs lies beside it, without a usable RPATH; an image's loader
    finds its own.
    """
    if path.parent.name != WHEEL_FOLDER:
        return []
    return [
        sibling
        for sibling in sorted(path.parent.glob("*.so*"))
        if sibling != path and not sibling.name.startswith("libpython")
    ]
