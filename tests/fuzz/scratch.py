"""One folder for all inputs that are read from a file."""

import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def folder() -> Path:
    """Made when it is first asked for."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def remove() -> None:
    """At the end."""
    shutil.rmtree(folder())
    folder.cache_clear()
