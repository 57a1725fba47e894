"""The environment of a gateway under test: the wall clock, DNS names, and a record of the processes
it starts.

The gateway preloads a small library (world.c), which gcc compiles. A wait that used the wall clock
would be off by the whole jump.
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
    """Applies to gateways that are started `within` it."""

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
        """Processes that are started in this block preload the library."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_PRELOAD", os.fspath(self._library))
            patch.setenv("WORLD", os.fspath(self._file))
            patch.setenv("STARTED", os.fspath(self._started))
            yield

    def started(self) -> list[str]:
        """Return one line for each program and process started through the C library: the function
        and its argument. It does not see system calls that bypass the C library.
        """
        return self._started.read_text(errors="replace").splitlines()

    def jump(self, seconds: int) -> None:
        """Move the wall clock to its real time plus `seconds`, at once."""
        self._off_s = seconds
        self._tell()

    def resolve_in(self, seconds: int) -> None:
        """Make lookups of names, not addresses, fail after so many seconds. With 0 they resolve as
        usual, and waiting lookups fail within a second.
        """
        self._resolving_s = seconds
        self._tell()

    def _tell(self) -> None:
        told = struct.pack("qq", self._off_s, self._resolving_s)
        if not self._file.exists():
            self._file.write_bytes(told)
        with self._file.open("r+b") as file:  # the file is mapped: never truncate or replace it
            file.write(told)
