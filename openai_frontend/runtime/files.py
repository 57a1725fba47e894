"""Files that change while the process runs: replaces them atomically, and detects changes."""

import os
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4


class FileStamp(NamedTuple):
    """Writing or replacing a file changes at least one of these."""

    modified_ns: int
    changed_ns: int  # no program can set it, unlike the time of the modification
    inode: int
    size: int
    links: int

    def has_content_of(self, before: "FileStamp") -> bool:
        """Whether at most hard links were made or removed since, which changes `changed_ns` too. A
        program that writes the file at the same moment would have to keep its size, and to set back
        the time of its modification.
        """
        if self.links == before.links:
            return self == before
        return self._replace(changed_ns=before.changed_ns, links=before.links) == before


def file_stamp(path: Path | str) -> FileStamp | None:
    """None if the file cannot be accessed; reading it gives the reason."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return FileStamp(
        status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size, status.st_nlink
    )


def replace_file(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Readers get either the old or the new content. Raises OSError.

    The umask applies to `mode`. If root replaces a file, its owner stays the same.
    """
    # Containers that share a volume may share process ids.
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            _keep_owner(path, descriptor)
            os.fsync(descriptor)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _keep_owner(path: Path, descriptor: int) -> None:
    if path.exists() and os.geteuid() == 0:
        before = path.stat()
        os.fchown(descriptor, before.st_uid, before.st_gid)
