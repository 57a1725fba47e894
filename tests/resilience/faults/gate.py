"""Holds a process under test in one state until the test has seen all of it."""

from pathlib import Path


class Gate:
    """What waits for it does so while the file is there. It is open at first."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def close(self) -> None:
        self.path.touch()

    def open(self) -> None:
        """What waits goes on."""
        self.path.unlink()
