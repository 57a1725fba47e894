"""Notices at once that a child process has ended, without polling."""

import asyncio
import os
from collections.abc import Callable, Collection


class ProcessExits:
    """Used on one event loop. A kernel without process descriptors (before 5.3) reports no exit."""

    def __init__(self, on_exit: Callable[[], None]) -> None:
        """`on_exit` is called once for each watched process that ends."""
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._descriptors: dict[int, int] = {}  # by process id, of those that have not ended

    def watch(self, pids: Collection[int]) -> None:
        """Watch these children of this process, and no others."""
        for pid in self._descriptors.keys() - set(pids):
            self._forget(pid)
        for pid in set(pids) - self._descriptors.keys():
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:  # it is gone, or descriptors are short: the periodic check finds it
                continue
            self._descriptors[pid] = descriptor
            self._loop.add_reader(descriptor, self._ended, pid)

    def close(self) -> None:
        """Watch none."""
        self.watch(())

    def _ended(self, pid: int) -> None:
        self._forget(pid)
        self._on_exit()

    def _forget(self, pid: int) -> None:
        descriptor = self._descriptors.pop(pid)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
