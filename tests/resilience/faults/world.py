"""What a gateway sees of the world around it, as a test has it: the time of day, and names; and
what it starts in it.

The gateway begins with a small library of ours (world.c), which gcc makes; a wait for a time of
day, were there one, would be off by the whole jump.
"""

import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("world.c")


class World:
    """In a gateway that is started `within` it."""

    def __init__(self, folder: Path) -> None:
        self._library, self._file = folder / "world.so", folder / "world"
        self._started = folder / "started"
        self._started.touch()
        self._off_s = self._resolving_s = 0
        self._tell()
        options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["gcc", *options, "-o", self._library, _SOURCE, "-ldl"], check=True)  # noqa: S607  the machine's own

    @contextmanager
    def within(self) -> Iterator[None]:
        """Processes that are started here see it."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_PRELOAD", os.fspath(self._library))
            patch.setenv("WORLD", os.fspath(self._file))
            patch.setenv("STARTED", os.fspath(self._started))
            yield

    def started(self) -> list[str]:
        """Each program and process that was started through the C library, by whatever code: the
        function, and what it was to run. A system call that passes the library by is not among
        them.
        """
        return self._started.read_text(errors="replace").splitlines()

    def jump(self, seconds: int) -> None:
        """The time of day is so much later than it really is; at once."""
        self._off_s = seconds
        self._tell()

    def resolve_in(self, seconds: int) -> None:
        """Names, not addresses, fail after so long; 0: they are resolved as ever, and what waits
        fails within a second.
        """
        self._resolving_s = seconds
        self._tell()

    def _tell(self) -> None:
        told = struct.pack("qq", self._off_s, self._resolving_s)
        if not self._file.exists():
            self._file.write_bytes(told)
        with self._file.open("r+b") as file:  # it is mapped: never cut, never another
            file.write(told)
