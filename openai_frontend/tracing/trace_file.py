"""Files of traces: JSON arrays that are valid after every write."""

import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path

_MODE = 0o640
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class JsonArrayFile:
    """An array that grows at its end. Replaces what was in the file before the first write."""

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        """Raises OSError if the file cannot be written, is not a regular file, or, with
        `exclusive`, if another process has it open so.
        """
        # A numbered file has a name that others can foresee
        self._file = os.open(path, _FLAGS | (0 if exclusive else os.O_NOFOLLOW), _MODE)
        self._end = 0  # before the bracket that closes the array
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise OSError(0, "it is not a regular file")
            if exclusive:
                _lock(self._file)
        except OSError:
            os.close(self._file)
            raise

    def append(self, members: Sequence[bytes]) -> None:
        """Serialized members, at least one. Raises OSError; the file has the previous ones then."""
        text = (b"," if self._end else b"[") + b",".join(members) + b"]"
        try:
            written = 0
            while written < len(text):
                written += os.pwrite(self._file, text[written:], self._end + written)
        except OSError:
            self._restore()
            raise
        os.ftruncate(self._file, self._end + len(text))
        self._end += len(text) - 1

    def _restore(self) -> None:
        """Its bytes are in the file already, so this needs no room."""
        if self._end:
            os.pwrite(self._file, b"]", self._end)
        os.ftruncate(self._file, self._end + 1 if self._end else 0)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return self._end == 0

    def close(self) -> None:
        os.close(self._file)


def _lock(file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(0, "another server writes to it") from None


def unusable(path: Path) -> str | None:
    """Why a server cannot write its traces there; None if it can."""
    existed = path.exists()
    try:
        JsonArrayFile(path, exclusive=True).close()
    except OSError as error:
        return error.strerror
    if not existed:
        path.unlink(missing_ok=True)
    return None
