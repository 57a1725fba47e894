"""Polls the keys file in the background, so that requests never wait for it."""

import asyncio
import logging
import stat
from collections.abc import Sequence
from pathlib import Path

from openai_frontend.auth import keys_file
from openai_frontend.auth.api_keys import ApiKeys
from openai_frontend.auth.keys import Key
from openai_frontend.auth.keys_file import InvalidKeysFile

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0

_Fingerprint = tuple[int, int, int]  # modification time, inode and size


class KeysFileWatcher:
    """Keeps `keys` equal to the file. If the file is invalid, the previous keys stay in force."""

    def __init__(self, path: Path, static_keys: Sequence[Key] = ()) -> None:
        """`static_keys` are valid too; if a key is in both, the file's entry applies.

        Raises InvalidKeysFile if the file cannot be read.
        """
        self._path = path
        self._static_keys = static_keys
        self._fingerprint = _fingerprint(path)
        self.keys = ApiKeys([*static_keys, *keys_file.read(path)])
        _warn_if_others_can_write(path)

    async def watch(self, interval_s: float = POLL_INTERVAL_S) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await self.refresh()

    async def refresh(self) -> None:
        """Reads the file in a thread if it has changed since it was last read."""
        fingerprint = await asyncio.to_thread(_fingerprint, self._path)
        if fingerprint == self._fingerprint:
            return
        self._fingerprint = fingerprint
        try:
            keys = await asyncio.to_thread(keys_file.read, self._path)
        except InvalidKeysFile as error:
            logger.error("%s; the previous keys stay in force", error)
            return
        self.keys.replace([*self._static_keys, *keys])
        logger.info("%s: loaded %d keys", self._path, len(self.keys))


def _warn_if_others_can_write(path: Path) -> None:
    """A user who can write the file can grant access to the server."""
    if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        logger.warning("%s: the file is group- or world-writable", path)


def _fingerprint(path: Path) -> _Fingerprint | None:
    """None if the file cannot be accessed; reading it gives the reason."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
