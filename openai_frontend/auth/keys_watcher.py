"""Follows the file of keys. A request never waits for it."""

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

LOOK_EVERY_S = 1.0

_Mark = tuple[int, int, int]  # of a file's content: it changes with it


class KeysFileWatcher:
    """The keys of a file as it is now; while it is broken, as it was."""

    def __init__(self, path: Path, general: Sequence[Key] = ()) -> None:
        """`general` keys are in force beside the file's; if one is in both, the file decides.

        Raises InvalidKeysFile where there are no keys to begin with.
        """
        self._path = path
        self._general = general
        self._mark = _mark(path)
        self.ring = ApiKeys([*general, *keys_file.read(path)])
        _warn_of_writers(path)

    async def follow(self, every_s: float = LOOK_EVERY_S) -> None:
        """Looks at the file for ever."""
        while True:
            await asyncio.sleep(every_s)
            await self.look()

    async def look(self) -> None:
        """Takes the file's keys where it is not the one that was read last; off the loop."""
        mark = await asyncio.to_thread(_mark, self._path)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            keys = await asyncio.to_thread(keys_file.read, self._path)
        except InvalidKeysFile as error:
            logger.error("%s; the keys that were read before stay in force", error)
            return
        self.ring.replace([*self._general, *keys])
        logger.info("%s: %d keys are in force", self._path, len(self.ring))


def _warn_of_writers(path: Path) -> None:
    """Whoever writes the file says who may come in."""
    if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        logger.warning("%s: others than its owner may write keys into it", path)


def _mark(path: Path) -> _Mark | None:
    """None where it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
