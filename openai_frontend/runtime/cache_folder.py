"""The user's folder for files that can be made again."""

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """XDG Base Directory Specification: a relative path is ignored. None without a home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(named) if named.startswith("/") else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "openai-frontend"
