"""One temporary folder for all inputs that are read from a file."""

import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def folder() -> Path:
    """Return the folder; the first call creates it."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def remove() -> None:
    """Remove the folder at the end."""
    shutil.rmtree(folder())
    folder.cache_clear()
