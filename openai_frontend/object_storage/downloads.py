"""Fetches objects into files that are named after their content. An interrupted one resumes."""

import asyncio
import logging
import os
from contextlib import aclosing
from pathlib import Path

from openai_frontend.object_storage.bucket_reader import BucketReader, StoredObject
from openai_frontend.object_storage.errors import ObjectChanged, StorageError

logger = logging.getLogger(__name__)

_ATTEMPTS = 4  # without a byte in between
_FIRST_DELAY_S = 0.2

UNFINISHED = ".part"


def is_fetched(blobs: Path, stored: StoredObject) -> bool:
    return _size(blobs / stored.digest) == stored.size


async def fetch(reader: BucketReader, stored: StoredObject, blobs: Path) -> None:
    """Complete the object's file in `blobs`. Raises ObjectChanged, StorageError or OSError."""
    part = blobs / f"{stored.digest}{UNFINISHED}"
    if stored.etag is None or _size(part) > stored.size:
        part.unlink(missing_ok=True)
    failures = 0
    while True:
        before = max(0, _size(part))
        try:
            await _continue(reader, stored, part)
            break
        except StorageError as error:
            failures = failures + 1 if _size(part) <= before else 1
            if failures == _ATTEMPTS:
                raise
            logger.debug("fetching %s again from byte %d: %s", stored.path, _size(part), error)
        if failures > 1:
            part.unlink(missing_ok=True)  # perhaps the server sends no ranges
        await asyncio.sleep(_FIRST_DELAY_S * 2**failures)
    part.replace(blobs / stored.digest)


async def _continue(reader: BucketReader, stored: StoredObject, part: Path) -> None:
    """Append what is missing. The name of `part` includes the etag, so its bytes are valid."""
    with part.open("ab", buffering=0) as file:
        offset = file.tell()
        if offset < stored.size:
            async with aclosing(reader.read(stored, offset)) as chunks:
                async for chunk in chunks:
                    file.write(chunk)
        if file.tell() < stored.size:
            raise StorageError("the connection ended early")
        if file.tell() > stored.size:
            part.unlink()  # noqa: ASYNC240  this event loop does nothing but copy
            raise ObjectChanged(stored.path)
        # In a thread: those of 16 downloads share a commit of the file system
        await asyncio.to_thread(os.fsync, file.fileno())


def _size(path: Path) -> int:
    """-1 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
