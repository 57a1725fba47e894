"""Finds the folders of models in model repositories."""

from collections.abc import Iterable, Iterator
from pathlib import Path

_OF_FILE_SYSTEM = "lost+found"


def models(repositories: Iterable[Path]) -> list[Path]:
    """The folders of models."""
    return [path for path in folders(repositories) if is_model(path)]


def folders(repositories: Iterable[Path]) -> Iterator[Path]:
    """The folders that should be models, sorted by name: those that are neither hidden nor the file
    system's.
    """
    for path in subfolders(repositories):
        if not path.name.startswith(".") and path.name != _OF_FILE_SYSTEM:
            yield path


def subfolders(repositories: Iterable[Path]) -> Iterator[Path]:
    """All folders in the repositories, sorted by name."""
    for repository in repositories:
        if repository.is_dir():
            yield from sorted(path for path in repository.iterdir() if path.is_dir())


def is_model(path: Path) -> bool:
    """Whether the folder can be read, and has a config.pbtxt or a version."""
    try:
        return (path / "config.pbtxt").is_file() or bool(versions(path))
    except PermissionError:
        return False


def versions(path: Path) -> list[int]:
    """The numbers of a model's versions, sorted."""
    if not path.is_dir():
        return []
    names = [each.name for each in path.iterdir() if each.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal() and not name.startswith("0"))
