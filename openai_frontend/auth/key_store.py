"""Changes the file of keys: a server that reads it sees the old one or the new, never a part."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from openai_frontend.auth import keys_file
from openai_frontend.auth.keys import Key


class UnknownKey(Exception):
    """No key of the file has that name."""


class KeyExists(Exception):
    """A key of the file has that name already."""


def add(path: Path, key: Key) -> None:
    """Adds a key; the file is made where there is none. Raises KeyExists, InvalidKeysFile."""

    def with_key(keys: list[Key]) -> list[Key]:
        if any(each.name == key.name for each in keys):
            raise KeyExists
        return [*keys, key]

    _change(path, with_key)


def revoke(path: Path, name: str) -> None:
    """Takes a key out. Raises UnknownKey, InvalidKeysFile."""

    def without_key(keys: list[Key]) -> list[Key]:
        left = [each for each in keys if each.name != name]
        if len(left) == len(keys):
            raise UnknownKey
        return left

    _change(path, without_key)


def _change(path: Path, change: Callable[[list[Key]], list[Key]]) -> None:
    """OSError where the folder cannot be written."""
    path = path.resolve()  # a link stays one
    with _locked(path.parent):
        as_json = path.suffix == ".json"
        keys = keys_file.read(path) if path.exists() else []
        content = keys_file.render(change(keys), as_json=as_json)
        keys_file.parse(content, as_json=as_json)  # what nobody can read would stop every change
        _replace(path, content)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One command at a time; no file is left behind for it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    """For its owner alone; who owned the file before, as the server's account, still does."""
    descriptor, written = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            _keep_owner(path, file.fileno())
            os.fsync(file.fileno())
        os.replace(written, path)
    except BaseException:
        os.unlink(written)
        raise


def _keep_owner(path: Path, descriptor: int) -> None:
    if path.exists() and os.geteuid() == 0:
        before = path.stat()
        os.fchown(descriptor, before.st_uid, before.st_gid)
