"""Records what each set-up step was built from: a digest of contents, not of times."""

import hashlib
from collections.abc import Iterable
from pathlib import Path


def digest(paths: Iterable[Path], *facts: str) -> str:
    """Hash the facts, and the name and bytes of each file; a folder includes all files below it."""
    sha = hashlib.sha256()
    for fact in facts:
        sha.update(f"{fact}\0".encode())
    for path in files_of(paths):
        sha.update(f"{path.as_posix()}\0".encode())
        sha.update(hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()


def files_of(paths: Iterable[Path]) -> list[Path]:
    found: set[Path] = set()
    for path in paths:
        found.update(path.rglob("*") if path.is_dir() else [path])
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


class Stamp:
    """A file with the digest for which a step last finished."""

    def __init__(self, path: Path, wanted: str) -> None:
        self.path = path
        self.wanted = wanted

    @property
    def fresh(self) -> bool:
        return self.path.is_file() and self.path.read_text() == self.wanted

    def clear(self) -> None:
        """Called before the step starts: an interrupted step must run again."""
        self.path.unlink(missing_ok=True)

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.wanted)
